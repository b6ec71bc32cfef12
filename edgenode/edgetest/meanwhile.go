package edgetest

import "io"

// Meanwhile is a request's body before which Do runs, once: when the request has been
// admitted and its body is not there yet.
type Meanwhile struct {
	Do   func() // nil: nothing
	Body io.Reader
}

func (m *Meanwhile) Read(b []byte) (int, error) {
	if m.Do != nil {
		m.Do()
		m.Do = nil
	}
	return m.Body.Read(b)
}
