package cli

import (
	"context"
	"net/url"
	"time"
)

type webhookCommands struct {
	List         webhookList       `cmd:"" help:"List subscriptions."`
	Create       webhookCreate     `cmd:"" help:"Subscribe an address to events; the signing secret is printed this once."`
	Enable       webhookEnable     `cmd:"" help:"Let a subscription send again, also one that was disabled for its failures."`
	Disable      webhookDisable    `cmd:"" help:"Stop a subscription; events meanwhile are not kept."`
	Delete       webhookDelete     `cmd:"" help:"Delete a subscription."`
	RotateSecret webhookRotate     `cmd:"" help:"Give a subscription a new signing secret, printed this once."`
	Test         webhookTest       `cmd:"" help:"Send a webhook.test event."`
	Deliveries   webhookDeliveries `cmd:"" help:"List a subscription's deliveries."`
	DeadLetters  webhookDead       `cmd:"" name:"dead-letters" help:"List deliveries that were given up."`
	Retry        webhookRetry      `cmd:"" help:"Deliver once more what was given up."`
	Recover      webhookRecover    `cmd:"" help:"Deliver again what failed within a time."`
}

const subscriptions = "/api/v1/webhooks/subscriptions"

var deliveryColumns = []string{"ID=id", "EVENT=event", "STATUS=status", "ATTEMPTS=attempts", "CODE=last_status_code",
	"ERROR=last_error", "NEXT=next_attempt_at", "CREATED=created_at"}

type webhookList struct {
	connection
	Project string `group:"connection" help:"Only subscriptions of this project; without it all that the token sees." placeholder:"ID"`
	listing
}

// Run lists subscriptions.
func (cmd *webhookList) Run(ctx context.Context, c *client) error {
	query := map[string]string{"project_id": cmd.Project}
	return c.show(ctx, cmd.listing, subscriptions, query, "subscriptions",
		"ID=id", "URL=url", "EVENTS=events", "ENABLED=enabled", "DISABLED FOR=disabled_reason", "PROJECT=project_id", "ENVIRONMENT=environment")
}

type webhookCreate struct {
	connection
	Project     string   `group:"connection" help:"Only events of this project; without it those of the whole organization." placeholder:"ID"`
	Target      string   `arg:"" help:"Address that receives the events (https)."`
	Events      []string `arg:"" help:"Names or patterns, such as switch.* or pulse.response.submitted."`
	Description string   `help:"What the subscription is for."`
	Environment string   `help:"Only this environment: live or test." enum:"live,test," default:"" short:"e"`
}

// Run creates a subscription.
func (cmd *webhookCreate) Run(ctx context.Context, c *client) error {
	body := map[string]any{"url": cmd.Target, "events": cmd.Events}
	for member, v := range map[string]string{"description": cmd.Description, "project_id": cmd.Project, "environment": cmd.Environment} {
		if v != "" {
			body[member] = v
		}
	}
	return c.reveal(ctx, request{method: "POST", path: subscriptions, body: body}, "subscription", "secret")
}

// oneSubscription is for commands on a subscription.
type oneSubscription struct {
	connection
	ID string `arg:"" help:"Id of the subscription."`
}

func (cmd *oneSubscription) path(below string) string {
	return subscriptions + "/" + url.PathEscape(cmd.ID) + below
}

type webhookEnable struct{ oneSubscription }

// Run enables a subscription.
func (cmd *webhookEnable) Run(ctx context.Context, c *client) error {
	return cmd.set(ctx, c, true, "enabled")
}

type webhookDisable struct{ oneSubscription }

// Run disables a subscription.
func (cmd *webhookDisable) Run(ctx context.Context, c *client) error {
	return cmd.set(ctx, c, false, "disabled")
}

func (cmd *oneSubscription) set(ctx context.Context, c *client, enabled bool, word string) error {
	r := request{method: "PATCH", path: cmd.path(""), body: map[string]bool{"enabled": enabled}}
	return c.act(ctx, r, "subscription", word+" %s (%s)", "id", "url")
}

type webhookDelete struct{ oneSubscription }

// Run deletes a subscription.
func (cmd *webhookDelete) Run(ctx context.Context, c *client) error {
	return c.remove(ctx, subscriptions+"/", cmd.ID, "deleted")
}

type webhookRotate struct {
	oneSubscription
	Grace time.Duration `help:"How long the old secret signs beside the new one." default:"24h"`
}

// Run rotates a secret.
func (cmd *webhookRotate) Run(ctx context.Context, c *client) error {
	r := request{method: "POST", path: cmd.path("/rotate-secret"), body: graceOf(cmd.Grace)}
	return c.reveal(ctx, r, "subscription", "secret")
}

type webhookTest struct{ oneSubscription }

// Run queues a test event.
func (cmd *webhookTest) Run(ctx context.Context, c *client) error {
	return c.act(ctx, request{method: "POST", path: cmd.path("/test")}, "delivery", "queued %s as delivery %s", "event", "id")
}

type webhookDeliveries struct {
	oneSubscription
	listing
	Status string `help:"Only this status: pending, delivered, failed or dead." enum:"pending,delivered,failed,dead," default:""`
}

// Run lists deliveries.
func (cmd *webhookDeliveries) Run(ctx context.Context, c *client) error {
	query := map[string]string{"status": cmd.Status}
	return c.show(ctx, cmd.listing, cmd.path("/deliveries"), query, "deliveries", deliveryColumns...)
}

type webhookDead struct {
	connection
	listing
}

// Run lists what was given up.
func (cmd *webhookDead) Run(ctx context.Context, c *client) error {
	return c.show(ctx, cmd.listing, "/api/v1/webhooks/dead-letters", nil, "dead_letters", deliveryColumns...)
}

type webhookRetry struct {
	connection
	ID string `arg:"" help:"Id of the delivery."`
}

// Run queues a delivery again.
func (cmd *webhookRetry) Run(ctx context.Context, c *client) error {
	r := request{method: "POST", path: "/api/v1/webhooks/deliveries/" + url.PathEscape(cmd.ID) + "/retry"}
	return c.act(ctx, r, "", "queued "+verbatim(cmd.ID)+" again")
}

type webhookRecover struct {
	oneSubscription
	Since string `help:"From this time on, ISO 8601." required:"" placeholder:"TIME"`
	Until string `help:"Up to but not including this time." placeholder:"TIME"`
}

// Run queues a time's failed deliveries again.
func (cmd *webhookRecover) Run(ctx context.Context, c *client) error {
	body := map[string]string{"since": cmd.Since}
	if cmd.Until != "" {
		body["until"] = cmd.Until
	}
	r := request{method: "POST", path: cmd.path("/recover"), body: body}
	return c.act(ctx, r, "", "queued the failed deliveries since "+verbatim(cmd.Since)+" again")
}

type deadLetterCommands struct {
	List   deadLetterList   `cmd:"" help:"List events that the store refused."`
	Replay deadLetterReplay `cmd:"" help:"Try to store them again."`
}

const deadLetters = "/api/v1/ingest/dead-letters"

type deadLetterList struct {
	connection
	ofProject
	inEnvironment
	listing
}

// Run lists dead letters.
func (cmd *deadLetterList) Run(ctx context.Context, c *client) error {
	return c.show(ctx, cmd.listing, deadLetters, c.within(cmd.ofProject, cmd.inEnvironment), "dead_letters",
		"ID=id", "KIND=kind", "ENVIRONMENT=environment", "REASON=reason", "RECEIVED=received_at", "REPLAYED=replayed_at")
}

type deadLetterReplay struct {
	connection
	IDs []string `arg:"" name:"id" help:"Ids of dead letters."`
}

// Run replays each in turn and stops at the first that fails.
func (cmd *deadLetterReplay) Run(ctx context.Context, c *client) error {
	for _, id := range cmd.IDs {
		r := request{method: "POST", path: deadLetters + "/" + url.PathEscape(id) + "/replay"}
		if err := c.act(ctx, r, "", "replayed "+verbatim(id)); err != nil {
			return err
		}
	}
	return nil
}
