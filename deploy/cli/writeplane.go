package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"skerry/pkg/seal"
	"skerry/writeplane"
	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/blobs"
	"skerry/writeplane/ingest"
	"skerry/writeplane/postgres"
	"skerry/writeplane/symbols"
	"skerry/writeplane/webhooks/target"
)

// database is how a process finds PostgreSQL.
type database struct {
	PostgresURL string `help:"Connection URL, several hosts allowed: postgres://user:password@host:5432/skerry." required:"" placeholder:"URL"`
}

func (d database) validate() error { return postgresURL("--postgres-url", d.PostgresURL) }

// postgresURL refuses a URL that no connection can be tried with. It does not
// quote it: there may be a password in it.
func postgresURL(flag, address string) error {
	if _, err := pgconn.ParseConfig(address); err != nil {
		return usagef("%s is not of the form postgres://user:password@host:5432/database", flag)
	}
	return nil
}

type migrateCommand struct{ database }

// Run brings the database to the schema of this program. Two at once are
// safe; a database newer than the program is refused.
func (cmd *migrateCommand) Run(ctx context.Context, streams Streams) error {
	if err := cmd.validate(); err != nil {
		return err
	}
	if err := postgres.Migrate(ctx, cmd.PostgresURL); err != nil {
		return err
	}
	_, err := fmt.Fprintln(streams.Out, "the schema is current")
	return err
}

// proxies is whom X-Forwarded-For is believed from.
type proxies struct {
	TrustedProxies []netip.Prefix `name:"trusted-proxy" help:"Networks whose X-Forwarded-For is believed, such as 10.0.0.0/8." placeholder:"CIDR"`
}

// stopping is how a process behind a load balancer ends.
type stopping struct {
	ShutdownDelay time.Duration `help:"How long to go on answering after SIGTERM, while /readyz already says 503, so that load balancers notice." default:"0s"`
}

func (s stopping) validate() error {
	if s.ShutdownDelay < 0 {
		return usagef("--shutdown-delay %s is negative", s.ShutdownDelay)
	}
	return nil
}

// identity is how tokens are issued and secrets are sealed.
type identity struct {
	Issuer         string `help:"Issuer named in the tokens of this installation." default:"skerry"`
	SealingKeyFile string `help:"File with 32 bytes in base64, the key that seals secrets in the database; former keys may stand below it, a line each. Without the file they are sealed by a key kept beside them." placeholder:"FILE"`
}

// planeSettings are those of the write plane that hold however it is run.
type planeSettings struct {
	identity
	PublicURL          string         `help:"Base address under which clients reach downloads, an edge's or the plane's; the plane's own when absent." placeholder:"URL"`
	SMTPURL            string         `name:"smtp-url" help:"Mail server for scheduled exports: smtp://user:password@host:587?from=ADDRESS, or smtps://." placeholder:"URL"`
	AuditMirrorURL     string         `name:"audit-mirror-url" help:"PostgreSQL that holds the audit log's query mirror; without it a schema beside the log." placeholder:"URL"`
	RetentionDays      int            `help:"Days of events to keep, by day of receipt; 0 keeps all." default:"0"`
	CrashRetentionDays int            `help:"Days of crash reports to keep, by receipt; 0 keeps all." default:"90"`
	IngestStreamBytes  int64          `help:"How many bytes of events may wait between edges and the plane; 0 means 2 GiB." default:"0"`
	SymbolMaxFileBytes int64          `help:"Largest symbol file; 0 means 512 MiB." default:"0"`
	SymbolMaxBodyBytes int64          `help:"Largest symbol upload as a whole; 0 means 500 MiB." default:"0"`
	OIDCIssuers        []string       `name:"oidc-issuer" sep:"none" help:"External issuer whose tokens are accepted: issuer=URL;audience=A;organization=ID[;email-claim=C][;role-claim=C][;project-claim=C]. May be repeated." placeholder:"SETTINGS"`
	WebhookAllowHTTP   bool           `name:"webhook-allow-http" help:"Let webhooks go to plain http addresses."`
	WebhookAllowCIDR   []netip.Prefix `name:"webhook-allow-cidr" help:"Networks that webhooks may reach though they are not public, by plain http too." placeholder:"CIDR"`
}

func (s *planeSettings) validate() error {
	for _, n := range []struct {
		flag  string
		value int64
	}{
		{"--retention-days", int64(s.RetentionDays)},
		{"--crash-retention-days", int64(s.CrashRetentionDays)},
		{"--ingest-stream-bytes", s.IngestStreamBytes},
		{"--symbol-max-file-bytes", s.SymbolMaxFileBytes},
		{"--symbol-max-body-bytes", s.SymbolMaxBodyBytes},
	} {
		if err := notNegative(n.flag, n.value); err != nil {
			return err
		}
	}
	if s.SMTPURL != "" {
		if _, err := audit.NewSMTP(s.SMTPURL); err != nil {
			return usagef("--smtp-url: %w", err)
		}
	}
	if s.AuditMirrorURL != "" {
		if err := postgresURL("--audit-mirror-url", s.AuditMirrorURL); err != nil {
			return err
		}
	}
	return publicURL(s.PublicURL)
}

// config is the part of the plane's configuration that the settings make.
func (s *planeSettings) config() (writeplane.Config, error) {
	sealing, err := readSealingKeys(s.SealingKeyFile)
	if err != nil {
		return writeplane.Config{}, err
	}
	if err := s.validate(); err != nil {
		return writeplane.Config{}, err
	}
	issuers := make([]access.IssuerConfig, len(s.OIDCIssuers))
	for i, text := range s.OIDCIssuers {
		if issuers[i], err = parseIssuer(text); err != nil {
			return writeplane.Config{}, usagef("--oidc-issuer %q: %w", text, err)
		}
	}
	return writeplane.Config{
		Access:   access.Config{Issuer: s.Issuer, SealingKeys: sealing, Issuers: issuers},
		Audit:    writeplane.AuditConfig{MirrorURL: s.AuditMirrorURL, SMTPURL: s.SMTPURL},
		Webhooks: target.Config{AllowHTTP: s.WebhookAllowHTTP, AllowCIDRs: s.WebhookAllowCIDR},
		Blobs:    blobs.Config{PublicURL: strings.TrimSuffix(s.PublicURL, "/")},
		Symbols:  symbols.Config{MaxFileBytes: s.SymbolMaxFileBytes, MaxBodyBytes: s.SymbolMaxBodyBytes},
		Ingest:   ingest.Config{RetentionDays: s.RetentionDays},

		CrashRetentionDays: s.CrashRetentionDays,
		IngestStreamBytes:  s.IngestStreamBytes,
	}, nil
}

// validate refuses what needs no server to be seen as wrong.
func (cmd *writePlaneCommand) validate() error {
	if err := cmp.Or(cmd.database.validate(), cmd.messaging.validate(), cmd.stopping.validate(), listenAddress("--listen", cmd.Listen), listenAddress("--listen-operator", cmd.ListenOperator)); err != nil {
		return err
	}
	if cmd.StreamReplicas < 1 || cmd.StreamReplicas > 5 {
		return usagef("--stream-replicas %d is not between 1 and 5", cmd.StreamReplicas)
	}
	if cmd.PostgresConns < 1 || cmd.PostgresConns > 10_000 {
		return usagef("--postgres-connections %d is not between 1 and 10000", cmd.PostgresConns)
	}
	if scheme, _, ok := strings.Cut(cmd.BlobURL, "://"); ok && scheme != "file" && scheme != "s3" {
		return usagef("--blob-url %s://… is neither a folder nor s3://bucket?region=…", scheme)
	}
	return nil
}

type writePlaneCommand struct {
	database
	planeSettings
	proxies
	messaging
	stopping
	Listen         string `help:"Address of the API." default:"127.0.0.1:8090"`
	ListenOperator string `help:"Address for operators: health, metrics, status, profiles. Not for the public." default:"127.0.0.1:8190"`
	BlobURL        string `help:"Where files lie: a folder (one write plane only), or s3://bucket?region=…" required:"" placeholder:"URL"`
	StreamReplicas int    `help:"Replicas of the streams that the plane makes." default:"1"`
	PostgresConns  int    `name:"postgres-connections" help:"Most connections to PostgreSQL." default:"32"`
	Migrate        bool   `help:"Bring the schema up to date first."`
}

// Run serves until ctx ends.
func (cmd *writePlaneCommand) Run(ctx context.Context) error {
	outlive()
	if err := cmd.validate(); err != nil {
		return err
	}
	config, err := cmd.config()
	if err != nil {
		return err
	}
	config.Listen, config.ListenOperator = cmd.Listen, cmd.ListenOperator
	config.Postgres = postgres.Config{URL: cmd.PostgresURL, MaxConns: cmd.PostgresConns}
	config.NATS, config.NATSOptions = cmd.NATSURL, cmd.options()
	config.StreamReplicas = cmd.StreamReplicas
	config.TrustedProxies, config.ShutdownDelay = cmd.TrustedProxies, cmd.ShutdownDelay
	config.Blobs.URL = cmd.BlobURL
	if cmd.Migrate {
		if err := postgres.Migrate(ctx, cmd.PostgresURL); err != nil {
			return err
		}
	}
	plane, err := writeplane.New(ctx, config)
	if err != nil {
		return err
	}
	return plane.Run(ctx)
}

// readSealingKeys reads a file with one key a line: the current one first, former ones
// below it. A path of "" means no file and no key.
func readSealingKeys(path string) ([][]byte, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, usagef("--sealing-key-file: %w", err)
	}
	var keys [][]byte
	for line := range strings.FieldsSeq(string(raw)) {
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(key) != seal.KeyLen {
			return nil, usagef("--sealing-key-file: key %d of %s is not %d bytes in base64", len(keys)+1, path, seal.KeyLen)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, usagef("--sealing-key-file: %s is empty", path)
	}
	return keys, nil
}

func parseIssuer(text string) (c access.IssuerConfig, err error) {
	for setting := range strings.SplitSeq(text, ";") {
		name, value, ok := strings.Cut(setting, "=")
		if !ok {
			return c, fmt.Errorf("%q is not name=value", setting)
		}
		switch strings.TrimSpace(name) {
		case "issuer":
			c.Issuer = value
		case "audience":
			c.Audience = value
		case "organization":
			c.OrganizationID = value
		case "email-claim":
			c.EmailClaim = value
		case "role-claim":
			c.RoleClaim = value
		case "project-claim":
			c.ProjectClaim = value
		default:
			return c, fmt.Errorf("unknown setting %q", name)
		}
	}
	return c, nil
}
