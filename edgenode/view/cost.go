package view

import (
	"unsafe"

	"skerry/pkg/predicate"
)

// Estimates of the heap that things take, without their compiled forms, whose makers tell
// their size. The bound on memory is only as good as these numbers; a test compares them
// with the heap.

// pointer is a place in a list.
const pointer = int64(unsafe.Sizeof(uintptr(0)))

// allocated is what an object of n bytes takes: sizes go in steps.
func allocated[N int | uintptr](n N) int64 { return int64(n+15) &^ 15 }

// cost estimates how many bytes the environment holds.
func (e *Environment) cost() int64 {
	const slotAndMaps = 512
	n := allocated(unsafe.Sizeof(*e)) + allocated(unsafe.Sizeof(slot{})) + slotAndMaps
	for key, halt := range e.halts {
		n += 2*pointer + allocated(unsafe.Sizeof(*halt)) + allocated(len(key)) +
			allocated(len(halt.FlagID)) + allocated(len(halt.Key)) + allocated(len(halt.Reason)) +
			allocated(len(halt.DefaultValue)) + allocated(len(halt.DefaultVariant))
	}
	for _, list := range [][]string{e.Settings.Allowlist.Origins, e.Settings.Allowlist.CIDRs} {
		for _, text := range list {
			n += 2*pointer + allocated(len(text))
		}
	}
	const counter = 64
	n += counter * int64(len(e.Usage.EventsBy)+len(e.Usage.HandshakesBy))
	return n + e.bytes + e.hooked
}

func (f *Flag) cost() int64 { return pointer + allocated(unsafe.Sizeof(*f)) + allocated(len(f.Key)) }

func (i *Item) cost() int64 { return pointer + allocated(unsafe.Sizeof(*i)) + allocated(len(i.Key)) }

func (s *Survey) cost() int64 {
	return pointer + allocated(unsafe.Sizeof(*s)) + allocated(len(s.ID)) + allocated(len(s.Slug))
}

func (c *Cohort) cost() int64 {
	n := pointer + allocated(unsafe.Sizeof(*c)) + 2*allocated(len(c.Name))
	if c.members != nil {
		n += allocated(unsafe.Sizeof(*c.members))
	}
	if c.Predicate != nil {
		for node := range c.Predicate.Nodes() {
			n += allocated(unsafe.Sizeof(predicate.Node{})) + allocated(len(node.Name)) + allocated(len(node.Value))
		}
	}
	return n
}

// forget lets go of the definitions that the hooks have compiled. Only what is new has
// one, and what is new is seen by nobody else yet.
func (d *draft) forget() {
	e := &d.env
	if d.changed.All {
		for _, f := range e.Flags {
			f.Definition = nil
		}
		for _, i := range e.Items {
			i.Definition = nil
		}
		for _, s := range e.Surveys {
			s.Definition = nil
		}
		return
	}
	for _, key := range d.changed.Flags {
		if f, ok := e.Flag(key); ok && f.Definition != nil {
			f.Definition = nil
		}
	}
	for _, key := range d.changed.Items {
		if i, ok := e.Item(key); ok && i.Definition != nil {
			i.Definition = nil
		}
	}
	for _, id := range d.changed.Surveys {
		if s, ok := e.survey(id); ok && s.Definition != nil {
			s.Definition = nil
		}
	}
}
