package audit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"mime/quotedprintable"
	"net"
	"net/textproto"
	"strings"
	"testing"
)

// mailServer is an SMTP server of one connection that keeps what it is told.
func mailServer(t *testing.T) (address string, received <-chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		text := textproto.NewConn(conn)
		_ = text.PrintfLine("220 ready")
		var envelope []string
		for {
			line, err := text.ReadLine()
			if err != nil {
				return
			}
			switch verb := strings.ToUpper(line[:4]); verb {
			case "EHLO":
				_ = text.PrintfLine("250 mail.example")
			case "DATA":
				_ = text.PrintfLine("354 go on")
				body, err := io.ReadAll(bufio.NewReader(text.DotReader()))
				if err != nil {
					return
				}
				out <- strings.Join(envelope, "\n") + "\n" + string(body)
				_ = text.PrintfLine("250 taken")
			case "QUIT":
				_ = text.PrintfLine("221 bye")
				return
			default:
				envelope = append(envelope, line)
				_ = text.PrintfLine("250 ok")
			}
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String(), out
}

func TestScheduledExportIsMailedWithALink(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	address, received := mailServer(t)
	mailer, err := NewSMTP("smtp://" + address + "?from=skerry@example.com")
	if err != nil {
		t.Fatal(err)
	}
	p := newPress(t, tr, mailer)
	row := p.request(t, filters{}, &delivery{Type: "email", To: "auditor@example.com"})
	if err := p.work(t, row); err != nil {
		t.Fatal(err)
	}
	letter := <-received
	for _, part := range []string{"MAIL FROM:<skerry@example.com>", "RCPT TO:<auditor@example.com>", "Subject: Audit export", "http://skerry.example/api/v1/downloads/exports/"} {
		if !strings.Contains(letter, part) {
			t.Errorf("no %q in\n%s", part, letter)
		}
	}
	if p.read(t, row).Status != "ready" {
		t.Error("not ready")
	}
}

// As S3 signs with the credentials of a role.
func TestLongLinkOutlivesItsMail(t *testing.T) {
	t.Parallel()
	address, received := mailServer(t)
	mailer, err := NewSMTP("smtp://" + address)
	if err != nil {
		t.Fatal(err)
	}
	text := "Prüfung:\n\nhttps://bucket.example/x.csv?X-Amz-Security-Token=" + strings.Repeat("a%2F", 500) + "\n\nuntil then\n"
	if err := mailer.Send(t.Context(), "auditor@example.com", Letter{Subject: "x", Text: text}); err != nil {
		t.Fatal(err)
	}
	header, body, _ := strings.Cut(<-received, "\n\n")
	if !strings.Contains(header, "Content-Transfer-Encoding: quoted-printable") {
		t.Errorf("header %s", header)
	}
	for line := range strings.SplitSeq(body, "\n") {
		if len(line) > 998 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
	if got, err := io.ReadAll(quotedprintable.NewReader(strings.NewReader(body))); err != nil || string(got) != text {
		t.Errorf("%q, %v; want %q", got, err, text)
	}
}

func TestMailServerThatIsAwayFailsTheAttemptOnly(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	mailer, err := NewSMTP("smtp://user:secret-word@127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	p := newPress(t, tr, mailer)
	row := p.request(t, filters{}, &delivery{Type: "email", To: "auditor@example.com"})
	for attempt := 1; attempt <= exportAttempts; attempt++ {
		if err := p.work(t, row); err == nil || strings.Contains(err.Error(), "secret-word") {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
		want := "running"
		if attempt == exportAttempts {
			want = "failed"
		}
		if got := p.read(t, row).Status; got != want {
			t.Errorf("attempt %d: %s", attempt, got)
		}
	}
	// What it could not send, it does not leave behind.
	if err := p.exporter.sweep(t.Context()); err != nil || len(p.objects(t)) != 0 || p.read(t, row).Object != nil {
		t.Errorf("%v, left: %v", err, p.objects(t))
	}
	if _, err := NewSMTP("http://user:secret-word@host"); err == nil || strings.Contains(err.Error(), "secret-word") {
		t.Errorf("%v", err)
	}
	if err := mailer.Send(t.Context(), "a@b\r\nBCC: c@d", Letter{}); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
