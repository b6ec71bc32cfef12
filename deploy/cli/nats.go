package cli

import (
	"crypto/x509"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
)

// messaging is how a process finds NATS.
type messaging struct {
	NATSURL         string `name:"nats-url" help:"NATS servers, separated by commas: nats://user:password@host:4222." required:"" placeholder:"URL"`
	NATSCredentials string `name:"nats-credentials" help:"NATS credentials file, read anew at each connection." placeholder:"FILE"`
	NATSCA          string `name:"nats-ca" help:"PEM file of the authorities that NATS servers' certificates come from, read anew at each connection; the system's own when absent." placeholder:"FILE"`
}

// validate refuses what the client would go on trying for ever, or would
// refuse in words that show a password.
func (m messaging) validate() error {
	if err := natsURL(m.NATSURL); err != nil {
		return err
	}
	if m.NATSCredentials != "" {
		f, err := os.Open(m.NATSCredentials)
		if err != nil {
			return usagef("--nats-credentials: %w", err)
		}
		_ = f.Close()
	}
	if m.NATSCA != "" {
		text, err := os.ReadFile(m.NATSCA)
		if err != nil {
			return usagef("--nats-ca: %w", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(text) {
			return usagef("--nats-ca: %s holds no certificate in PEM form", m.NATSCA)
		}
	}
	return nil
}

// natsURL checks a list of servers. Like the client, it takes host:port for
// nats://host:port.
func natsURL(list string) error {
	for server := range strings.SplitSeq(list, ",") {
		if server = strings.TrimSpace(server); !strings.Contains(server, "://") {
			server = "nats://" + server
		}
		u, err := url.Parse(server)
		if err != nil {
			return usagef("--nats-url is not of the form nats://user:password@host:4222; in a password, characters such as # or blanks are written %%23, %%20")
		}
		switch u.Scheme {
		case "nats", "tls", "ws", "wss":
		default:
			return usagef("--nats-url begins with %s://; NATS servers are nats://, tls://, ws:// or wss://", u.Scheme)
		}
		if u.Hostname() == "" {
			return usagef("--nats-url names no host: nats://host:4222")
		}
	}
	return nil
}

func (m messaging) options() (options []nats.Option) {
	if m.NATSCredentials != "" {
		options = append(options, nats.UserCredentials(m.NATSCredentials))
	}
	if m.NATSCA != "" {
		options = append(options, nats.RootCAs(m.NATSCA))
	}
	return options
}
