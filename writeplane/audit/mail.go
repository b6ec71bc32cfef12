package audit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/smtp"
	"net/url"
	"strings"
	"time"

	"skerry/pkg/id"
)

// Mailer sends letters.
type Mailer interface {
	Send(ctx context.Context, to string, letter Letter) error
}

// Letter is a plain text to one person.
type Letter struct{ Subject, Text string }

// SMTP sends letters through the operator's mail server.
type SMTP struct {
	host, address string
	implicitTLS   bool
	auth          smtp.Auth
	from          string
}

const mailTimeout = 30 * time.Second

// NewSMTP reads smtp://user:password@host:587?from=skerry@example.com, or smtps:// for
// TLS from the first byte. With smtp:// the connection turns to TLS when the server
// offers it; a password is never sent without (net/smtp's PlainAuth sees to it).
func NewSMTP(location string) (*SMTP, error) {
	parsed, err := url.Parse(location)
	if err != nil || parsed.Hostname() == "" || (parsed.Scheme != "smtp" && parsed.Scheme != "smtps") {
		return nil, errors.New("the mail server must be given as smtp://host:port or smtps://host:port") // without quoting a password
	}
	s := &SMTP{host: parsed.Hostname(), implicitTLS: parsed.Scheme == "smtps", from: parsed.Query().Get("from")}
	port := parsed.Port()
	if port == "" {
		port = map[string]string{"smtp": "587", "smtps": "465"}[parsed.Scheme]
	}
	s.address = net.JoinHostPort(s.host, port)
	if s.from == "" {
		s.from = "skerry@" + s.host
	}
	if parsed.User != nil {
		password, _ := parsed.User.Password()
		s.auth = smtp.PlainAuth("", parsed.User.Username(), password, s.host)
	}
	return s, nil
}

// Send implements Mailer.
func (s *SMTP) Send(ctx context.Context, to string, letter Letter) error {
	if strings.ContainsAny(to+s.from, "\r\n") {
		return errors.New("an address with a line break")
	}
	ctx, cancel := context.WithTimeout(ctx, mailTimeout)
	defer cancel()
	conn, err := s.dial(ctx)
	if err != nil {
		return fmt.Errorf("reach the mail server: %w", err)
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		_ = conn.Close()
		return fmt.Errorf("bound the talk with the mail server: %w", err)
	}
	client, err := smtp.NewClient(conn, s.host)
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("greet the mail server: %w", err)
	}
	defer func() { _ = client.Close() }()
	if err := s.converse(client, to, letter); err != nil {
		return fmt.Errorf("send mail: %w", err)
	}
	return nil
}

func (s *SMTP) dial(ctx context.Context) (net.Conn, error) {
	if s.implicitTLS {
		return (&tls.Dialer{Config: &tls.Config{ServerName: s.host}}).DialContext(ctx, "tcp", s.address)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", s.address)
}

func (s *SMTP) converse(client *smtp.Client, to string, letter Letter) error {
	if offered, _ := client.Extension("STARTTLS"); offered && !s.implicitTLS {
		if err := client.StartTLS(&tls.Config{ServerName: s.host}); err != nil {
			return err
		}
	}
	if s.auth != nil {
		if err := client.Auth(s.auth); err != nil {
			return err
		}
	}
	if err := client.Mail(s.from); err != nil {
		return err
	}
	if err := client.Rcpt(to); err != nil {
		return err
	}
	w, err := client.Data()
	if err != nil {
		return err
	}
	if err := s.write(w, to, letter); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return client.Quit()
}

// write writes the letter. A signed URL can be longer than a line of mail may be (RFC 5321,
// section 4.5.3.1.6), so the text travels in lines of its own and is put together again.
func (s *SMTP) write(w io.Writer, to string, letter Letter) error {
	_, err := fmt.Fprintf(w, "From: %s\r\nTo: %s\r\nSubject: %s\r\nDate: %s\r\nMessage-ID: <%s@%s>\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n",
		s.from, to, mime.QEncoding.Encode("utf-8", letter.Subject), time.Now().Format(time.RFC1123Z), id.New(), s.host)
	if err != nil {
		return err
	}
	text := quotedprintable.NewWriter(w)
	if _, err := io.WriteString(text, letter.Text); err != nil {
		return err
	}
	return text.Close()
}

// exportLetter tells that an export is ready and where.
func exportLetter(row exportRow, shown exportView) Letter {
	const day = "2006-01-02"
	text := fmt.Sprintf("The audit export from %s to %s (exclusive) is ready: %d entries, %d bytes.\n",
		row.Filters.Since.Format(day), row.Filters.Until.Format(day), *row.RowCount, *row.SizeBytes)
	if shown.DownloadURL != nil {
		text += fmt.Sprintf("\n%s\n\nThe link opens until %s.\n", *shown.DownloadURL, shown.ExpiresAt.UTC().Format(time.RFC1123))
	}
	return Letter{Subject: "Audit export " + row.Filters.Since.Format(day), Text: text}
}
