package up

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"skerry/pkg/natsserver/natstest"
)

// A process that is stopped, or a machine that is gone without a word, keeps its connections.
func TestAWritePlaneThatTakesNothingMoreEndsTheUpload(t *testing.T) {
	t.Parallel()
	ns := natstest.New(t)
	conn := ns.Connect(t, patient...)
	sub, err := conn.Subscribe(GrantSubjects, func(m *nats.Msg) { _ = m.Respond(mustMarshal(GrantReply{Token: "t"})) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections, and nobody reads them
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	u, err := NewUploader("e1", "http://"+silent.Addr().String(), conn)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	u.stall = 50 * time.Millisecond
	const size = 64 << 20 // more than the kernel's buffers hold
	err = u.Upload(t.Context(), "ingest/e1/x", size, [32]byte{}, bytes.NewReader(make([]byte, size)))
	if err == nil || !strings.Contains(err.Error(), "took nothing for 50ms") {
		t.Errorf("upload: %v", err)
	}
}
