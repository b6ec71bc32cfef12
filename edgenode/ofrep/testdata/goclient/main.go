// The Go OpenFeature SDK's OFREP provider, asking for one flag of each kind.
// Arguments: base address, API key. Prints one JSON object a line.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/open-feature/go-sdk-contrib/providers/ofrep"
	"github.com/open-feature/go-sdk/openfeature"
)

// answer is what the provider made of one flag.
type answer struct {
	Flag    string `json:"flag"`
	Value   any    `json:"value"`
	Variant string `json:"variant,omitempty"`
	Reason  string `json:"reason"`
	Error   string `json:"error,omitempty"`
	Halted  any    `json:"halted,omitempty"`
}

func main() {
	provider := ofrep.NewProvider(os.Args[1], ofrep.WithApiKeyAuth(os.Args[2]))
	ctx := context.Background()
	ada := openfeature.FlattenedContext{"targetingKey": "ada", "plan": "free"}
	out := json.NewEncoder(os.Stdout)
	show := func(flag string, value any, detail openfeature.ProviderResolutionDetail) {
		a := answer{Flag: flag, Value: value, Variant: detail.Variant, Reason: string(detail.Reason), Halted: detail.FlagMetadata["halted"]}
		if err := detail.Error(); err != nil {
			a.Error = string(detail.ResolutionDetail().ErrorCode)
		}
		if err := out.Encode(a); err != nil {
			log.Fatal(err)
		}
	}
	boolean := func(flag string, fallback bool, who openfeature.FlattenedContext) {
		got := provider.BooleanEvaluation(ctx, flag, fallback, who)
		show(flag, got.Value, got.ProviderResolutionDetail)
	}
	boolean("checkout", false, ada)
	colour := provider.StringEvaluation(ctx, "colour", "none", ada)
	show("colour", colour.Value, colour.ProviderResolutionDetail)
	limit := provider.FloatEvaluation(ctx, "limit", 0, ada)
	show("limit", limit.Value, limit.ProviderResolutionDetail)
	retries := provider.IntEvaluation(ctx, "retries", 0, ada)
	show("retries", retries.Value, retries.ProviderResolutionDetail)
	layout := provider.ObjectEvaluation(ctx, "layout", nil, ada)
	show("layout", layout.Value, layout.ProviderResolutionDetail)
	boolean("halted", true, ada)
	boolean("disabled", true, ada)
	boolean("absent", true, ada)
	boolean("checkout", true, nil)
}
