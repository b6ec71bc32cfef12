package flat

import "testing"

func table(t testing.TB) []byte {
	b := NewBuilder("TESTTAB1", 2)
	hello := b.String("hello")
	if again := b.String("hello"); again != hello {
		t.Fatal("a string stands twice")
	}
	b.U32(0, 7, hello, 1<<32-1)
	b.Append(1, []byte("raw"))
	data, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	t.Parallel()
	f, err := Open("TESTTAB1", 2, table(t))
	if err != nil {
		t.Fatal(err)
	}
	s := f.Section(0)
	if s.Rows(3) != 1 || s.At(0) != 7 || f.String(s.At(1)) != "hello" || s.At(2) != 1<<32-1 || f.String(0) != "" || string(f.Section(1)) != "raw" {
		t.Errorf("%v %q", s, f.text)
	}
}

// Every string keeps a place of its own whatever hash it has.
func TestStringsOfOneHashAreToldApart(t *testing.T) {
	t.Parallel()
	b := NewBuilder("TESTTAB1", 0)
	places := map[uint32]string{}
	for _, s := range []string{"a", "b", "c"} {
		places[b.intern(7, s)] = s
	}
	for at, s := range places {
		if again := b.intern(7, s); again != at || string(b.Text(at)) != s {
			t.Errorf("%q is at %d as %q, then at %d", s, at, b.Text(at), again)
		}
	}
	if len(places) != 3 {
		t.Errorf("three strings are at %v", places)
	}
}

func TestReadingOutsideATableGivesZero(t *testing.T) {
	t.Parallel()
	f, err := Open("TESTTAB1", 2, table(t))
	if err != nil {
		t.Fatal(err)
	}
	if f.Section(0).At(3) != 0 || f.Section(0).At(-1) != 0 || f.String(1<<31) != "" {
		t.Error("something was found outside")
	}
}

func TestAnotherMagicOrLengthDoesNotOpen(t *testing.T) {
	t.Parallel()
	data := table(t)
	for name, open := range map[string]func() (*Table, error){
		"magic":    func() (*Table, error) { return Open("TESTTAB2", 2, data) },
		"sections": func() (*Table, error) { return Open("TESTTAB1", 3, data) },
		"cut":      func() (*Table, error) { return Open("TESTTAB1", 2, data[:len(data)-1]) },
		"longer":   func() (*Table, error) { return Open("TESTTAB1", 2, append(data[:len(data):len(data)], 0)) },
		"empty":    func() (*Table, error) { return Open("TESTTAB1", 2, nil) },
	} {
		if _, err := open(); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(table(f), uint32(1), 2)
	f.Fuzz(func(t *testing.T, data []byte, at uint32, i int) {
		if table, err := Open("TESTTAB1", 2, data); err == nil {
			table.String(at)
			table.Section(0).At(i)
			table.Section(1).At(i)
		}
	})
}
