// A program with what symbolication has to get right: templates, deep inlining,
// lambdas, local classes, anonymous namespaces, exceptions, cold parts.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace {
struct Item {
  std::string name;
  int cents;
  int count;
};

inline int total(const Item &item) { return item.cents * item.count; }

template <typename T, typename F> T fold(const std::vector<T> &values, T start, F f) {
  for (const T &v : values)
    start = f(start, v);
  return start;
}
} // namespace

namespace shop {
class Cart {
public:
  void add(Item item) { items_.push_back(std::move(item)); }

  int sum() const {
    std::vector<int> totals;
    for (const Item &item : items_)
      totals.push_back(total(item));
    return fold(totals, 0, [](int a, int b) { return a + b; });
  }

  std::map<std::string, int> byName() const {
    std::map<std::string, int> out;
    for (const Item &item : items_)
      out[item.name] += total(item);
    return out;
  }

  __attribute__((noinline)) void check(int limit) const {
    if (sum() > limit)
      throw std::runtime_error("over the limit: " + std::to_string(sum()));
  }

private:
  std::vector<Item> items_;
};

struct Shape {
  virtual ~Shape() = default;
  virtual double area() const = 0;
};

template <int N> struct Poly : Shape {
  double side = N;
  double area() const override { return side * side * N / 4; }
};
} // namespace shop

extern "C" int plain_c_entry(int n) {
  struct Local {
    static int twice(int x) { return x * 2 + 1; }
  };
  int s = 0;
  for (int i = 0; i < n; i++)
    s += Local::twice(i) % 7;
  return s;
}

static int never_called(int x) { return x * 3; }
int (*volatile discarded)(int) = nullptr;
extern "C" int in_its_own_section(int x) { return never_called(x) + 1; }

int main(int argc, char **argv) {
  shop::Cart cart;
  for (int i = 0; i < argc + 20; i++)
    cart.add({"item" + std::to_string(i % 5), 100 + i, i});
  std::vector<std::unique_ptr<shop::Shape>> shapes;
  shapes.push_back(std::make_unique<shop::Poly<3>>());
  shapes.push_back(std::make_unique<shop::Poly<4>>());
  double area = std::accumulate(shapes.begin(), shapes.end(), 0.0,
                                [](double a, const auto &s) { return a + s->area(); });
  auto names = cart.byName();
  std::vector<std::pair<std::string, int>> sorted(names.begin(), names.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto &a, const auto &b) { return a.second > b.second; });
  try {
    cart.check(argc * 1000);
  } catch (const std::exception &e) {
    return static_cast<int>(sorted.size()) + plain_c_entry(argc) + static_cast<int>(area);
  }
  return 0;
}
