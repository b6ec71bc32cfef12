static inline int twice(int x) { return x * 2 + 1; }
__attribute__((noinline)) int helper(int n) {
  int s = 0;
  for (int i = 0; i < n; i++)
    s += twice(i) % 7;
  return s;
}
int entry(int n) { return helper(n) + twice(n); }
