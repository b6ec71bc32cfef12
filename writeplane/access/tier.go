package access

import (
	"slices"

	"skerry/pkg/state"
)

// The tiers, lowest to highest.
const (
	Hobby      = "hobby"
	Pro        = "pro"
	Growth     = "growth"
	Enterprise = "enterprise"
)

var tiers = [...]string{Hobby, Pro, Growth, Enterprise}

// ValidTier reports whether tier is one.
func ValidTier(tier string) bool { return slices.Contains(tiers[:], tier) }

// TierAtLeast reports whether tier includes what least includes.
func TierAtLeast(tier, least string) bool {
	return slices.Index(tiers[:], tier) >= slices.Index(tiers[:], least)
}

// TierQuotas are the monthly quotas of a tier (specification, Limits; responses:
// supplement §2). nil means unlimited; Enterprise's are agreed per project.
func TierQuotas(tier string) state.Quotas {
	n := func(v int64) *int64 { return &v }
	switch tier {
	case Hobby:
		return state.Quotas{Events: n(100_000), Handshakes: n(100_000), Responses: n(1_000)}
	case Pro:
		return state.Quotas{Events: n(5_000_000), Handshakes: n(10_000_000), Responses: n(50_000)}
	case Growth:
		return state.Quotas{Events: n(25_000_000), Responses: n(500_000)}
	}
	return state.Quotas{}
}

// EffectiveQuotas are the project's own quotas, and its tier's where it has none.
func EffectiveQuotas(tier string, own state.Quotas) state.Quotas {
	in := TierQuotas(tier)
	if own.Events != nil {
		in.Events = own.Events
	}
	if own.Handshakes != nil {
		in.Handshakes = own.Handshakes
	}
	if own.Responses != nil {
		in.Responses = own.Responses
	}
	return in
}
