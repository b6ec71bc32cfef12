package decide

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/twmb/murmur3"
)

func TestBucketsAreThoseOfTheVectors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/buckets.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []struct {
			Salt, Unit   string
			Hash, Bucket uint32
		}
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 100 {
		t.Fatalf("only %d vectors", len(file.Vectors))
	}
	for _, v := range file.Vectors {
		s := saltHash(v.Salt)
		if h := s.sum([]byte(v.Unit)); h != v.Hash {
			t.Errorf("hash of %q and %q is %d, want %d", v.Salt, v.Unit, h, v.Hash)
		}
		if b := Bucket(v.Salt, []byte(v.Unit)); b != v.Bucket {
			t.Errorf("bucket of %q and %q is %d, want %d", v.Salt, v.Unit, b, v.Bucket)
		}
	}
}

// FuzzBucket compares with another implementation of the same function.
func FuzzBucket(f *testing.F) {
	f.Add("salt", "unit")
	f.Add("", "")
	f.Add("abc", "\xff\xfe")
	f.Fuzz(func(t *testing.T, salt, unit string) {
		s := saltHash(salt)
		if got, want := s.sum([]byte(unit)), murmur3.StringSum32(salt+"\x00"+unit); got != want {
			t.Fatalf("hash of %q and %q is %d, want %d", salt, unit, got, want)
		}
		if b := Bucket(salt, []byte(unit)); b >= Buckets {
			t.Fatalf("bucket %d", b)
		}
	})
}

// Of 100,000 users, 10 steps of the hundred hold a tenth each, and what two salts say is independent: the chi-square of
// a 10 × 10 table with 81 degrees of freedom stays under its 99.9% quantile (124.8).
func TestTwoSaltsAreIndependent(t *testing.T) {
	t.Parallel()
	const users, steps = 100_000, 10
	var table [steps][steps]float64
	a, b := saltHash("k3JxQ0vWm7TzR1p"), saltHash("Zq81mXy5LrB0tGc")
	for i := range users {
		id := fmt.Appendf(nil, "user-%d", i)
		table[a.bucket(id)*steps/Buckets][b.bucket(id)*steps/Buckets]++
	}
	var rows, columns [steps]float64
	for i := range table {
		for j, n := range table[i] {
			rows[i] += n
			columns[j] += n
		}
	}
	chi := 0.0
	for i := range table {
		if math.Abs(rows[i]-users/steps) > 500 {
			t.Errorf("step %d of the first salt holds %.0f users", i, rows[i])
		}
		for j, n := range table[i] {
			expected := rows[i] * columns[j] / users
			chi += (n - expected) * (n - expected) / expected
		}
	}
	if chi > 124.8 {
		t.Errorf("chi-square %.1f", chi)
	}
}

func BenchmarkBucket(b *testing.B) {
	s := saltHash("k3JxQ0vWm7TzR1p")
	unit := []byte("6f1c2d1e-9f0a-4d5b-8c3e-2b7a1f0e9d8c")
	for b.Loop() {
		s.bucket(unit)
	}
}
