package cli

import "github.com/nats-io/nats.go"

func natsOptions(credentialsFile string) []nats.Option {
	if credentialsFile == "" {
		return nil
	}
	return []nats.Option{nats.UserCredentials(credentialsFile)}
}
