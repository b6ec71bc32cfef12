package native

import (
	"bytes"
	"math/big"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestRustNamesOfTheNewSchemeAreWritten(t *testing.T) {
	t.Parallel()
	for mangled, want := range map[string]string{
		// Closures are identifiers of length 0; what is behind the 0 is the next identifier.
		"_RNCNvC1a4main0":               "a::main::{closure#0}",
		"_RNCNCNvC1a4main00":            "a::main::{closure#0}::{closure#0}",
		"_RNCNCNCNvC1a4main00s_0":       "a::main::{closure#0}::{closure#0}::{closure#1}",
		"_RNCNCNCNvC1a4main0s0_0s_0":    "a::main::{closure#0}::{closure#2}::{closure#1}",
		"_RNvNCNvC1a4main010FIRST_CASE": "a::main::{closure#0}::FIRST_CASE",
		"_RINvC1a1fNCNCNvC1a1g00uE":     "a::f::<a::g::{closure#0}::{closure#0}, ()>",
		"_RNSNvC1a1f6vtable":            "a::f::{shim:vtable#0}",

		// Paths; the crate's number and the crate that made the copy are not shown.
		"_RNvNtCs1234_3foo3bar3baz":                "foo::bar::baz",
		"_RINvCs1_1a1fhECs2_1b":                    "a::f::<u8>",
		"_RNvC1a1f.llvm.123":                       "a::f",
		"_RNvMs0_C1aNtC1a1S3new":                   "<a::S>::new",
		"_RNvXC1aINtC1a1ShENtC1b1T3get":            "<a::S<u8> as b::T>::get",
		"_RNvYINtC1a1ShENtC1b1T3get":               "<a::S<u8> as b::T>::get",
		"_RNvMC0INtC8arrayvec8ArrayVechKj7b_E3new": "<arrayvec::ArrayVec<u8, 123>>::new",
		"_RINvC1a1fNtC1b1TNtB9_1UE":                "a::f::<b::T, b::U>",

		// Types.
		"_RINvC1a1fabcdefhijlmnopstuvxyzE":      "a::f::<i8, bool, char, f64, str, f32, u8, isize, usize, i32, u32, i128, u128, _, i16, u16, (), ..., i64, u64, !>",
		"_RINvC1a1fTETuETuhEE":                  "a::f::<(), ((),), ((), u8)>",
		"_RINvC1a1fReQhPeOShAhj3_E":             "a::f::<&str, &mut u8, *const str, *mut [u8], [u8; 3]>",
		"_RINvC1a1fRL_eRL_SeE":                  "a::f::<&str, &[str]>",
		"_RINvC1a1fFEuFhjEhFUKCEzFKu5foo_aEuE":  "",
		"_RINvC1a1fFEuFhjEhFUKCEzFK7foo_barEuE": `a::f::<fn(), fn(u8, usize) -> u8, unsafe extern "C" fn() -> !, extern "foo-bar" fn()>`,
		"_RINvC1a1fFG_RL0_hERL0_eE":             "a::f::<for<'a> fn(&'a u8) -> &'a str>",
		"_RINvC1a1fFG0_RL1_hFG_RL2_hRL0_hEuEuE": "a::f::<for<'a, 'b> fn(&'a u8, for<'c> fn(&'a u8, &'c u8))>",
		"_RINvC1a1fDNtC1b1TNtC1b1UEL_E":         "a::f::<dyn b::T + b::U>",
		"_RINvC1a1fDINtC1b2FnTeEEp6OutputbEL_E": "a::f::<dyn b::Fn<(str,), Output = bool>>",
		"_RINvC1a1fDNtC1b1Tp4ItemhEL_E":         "a::f::<dyn b::T<Item = u8>>",
		"_RINvC1a1fDG_INtC1b2FnTRL0_eEEEL_E":    "a::f::<dyn for<'a> b::Fn<(&'a str,)>>",
		"_RINvC1a1fWjRj1_j5_E":                  "a::f::<usize is 1..=5>",

		// Values.
		"_RINvC1a1fKh0_Kan5_Kb0_Kb1_Kpj0_E":                              "",
		"_RINvC1a1fKh0_Kan5_Kb0_Kb1_KpKyffffffffffffffff_E":              "a::f::<0, -5, false, true, _, 18446744073709551615>",
		"_RINvC1a1fKo10000000000000000_E":                                "a::f::<0x10000000000000000>",
		"_RINvC1a1fKc76_Kca_Kc27_Kc2202_Kc7f_E":                          `a::f::<'v', '\n', '\'', '∂', '\u{7f}'>`,
		"_RINvC1a1fKRe616263_Ke22_KRe_E":                                 `a::f::<"abc", {*"\""}, "">`,
		"_RINvC1a1fKAj1_j2_EKTj1_EKRj1_KQj1_E":                           "a::f::<{[1, 2]}, {(1,)}, {&1}, {&mut 1}>",
		"_RINvC1a1fKVNtC1b1SUKVNtC1b1STj1_Rj2_EKVNtC1b1SS1xj1_1yRe62_EE": `a::f::<{b::S}, {b::S(1, &2)}, {b::S { x: 1, y: "b" }}>`,

		// Names that are not ASCII.
		"_RNvC1au8_xthlqa": "",
		"_RNqCs4fqI2P2rA04_11utf8_identsu30____7hkackfecea1cbdathfdh9hlq6y": "utf8_idents::საჭმელად_გემრიელი_სადილი",
		"_RNvC1au10Mnchen_3ya": "a::München",
	} {
		if want == "" {
			want = mangled // not of the scheme: stays
		}
		if got := Demangle(mangled); got != want {
			t.Errorf("%s:\n got %s\nwant %s", mangled, got, want)
		}
	}
}

func TestWhatIsNoRustNameStaysAsItIs(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"_R", "_RC", "_R1C1a", "_RNvC1a", "_RNvC1a5main", "_RNvC1a1b$x", "_RB_", "_RNvB0_1a", "_RNvB2_1a", "_RIC1ahh", "_RNv", "_Rx",
		"_RNvC1aszzzzzzzzzzzzzzzzzzzz_1b", "_RIC1aKe6_E", "_RIC1aKb2_E", "_RIC1aKcffffffff_E", "_RIC1aRL0_hE", "_RNvC1au1-", "_RNvC1a99999999999999999999b",
		"_R" + strings.Repeat("Nv", 7_000), "_RIC1a" + strings.Repeat("R", 10_000) + "hE", "_RIC1aFGzzzz_EuE", "_reset",
	} {
		if got := Demangle(name); got != name {
			t.Errorf("%.60s: got %.80q", name, got)
		}
	}
}

// Each part of the name is a pair of the part before it, so its written form doubles.
func TestARustNameThatReferencesBlowUpStaysAsItIs(t *testing.T) {
	t.Parallel()
	name := "IC1aTuuE"
	for at, n := 4, 0; n < 64; n++ { // where the last pair begins
		reference := "B" + big.NewInt(int64(at-1)).Text(62) + "_"
		at = len(name)
		name += "T" + reference + reference + "E"
	}
	if name = "_R" + name + "E"; Demangle(name) != name {
		t.Error("2^64 characters were written")
	}
}

// The names of a real program are written as LLVM writes them, which has no hashes
// either, but tells the compiler's suffix and writes only ASCII.
func TestRustNamesAgreeWithLLVM(t *testing.T) {
	t.Parallel()
	filter := tool(t, "llvm-cxxfilt", "llvm")
	program := compile(t, tool(t, "rustc", "rustc"), "-g", "--edition", "2021", "closures.rs")
	listed, err := exec.Command(tool(t, "nm", "binutils"), "--format=just-symbols", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	names := slices.DeleteFunc(strings.Fields(string(listed)), func(name string) bool {
		return !strings.HasPrefix(name, "_R") || strings.Contains(name, ".")
	})
	if len(names) < 100 {
		t.Skipf("this rustc mangles otherwise: %d names", len(names))
	}
	filtering := exec.Command(filter)
	filtering.Stdin = bytes.NewReader([]byte(strings.Join(names, "\n") + "\n"))
	output, err := filtering.Output()
	if err != nil {
		t.Fatal(err)
	}
	written := strings.Split(strings.TrimSuffix(string(output), "\n"), "\n")
	if len(written) != len(names) {
		t.Fatalf("%d names, %d answers", len(names), len(written))
	}
	for i, name := range names {
		if got := Demangle(name); got != written[i] {
			t.Errorf("%s:\n got %s\nwant %s", name, got, written[i])
		}
	}
}
