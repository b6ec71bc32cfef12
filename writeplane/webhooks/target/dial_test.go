package target

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// addresses are what every name resolves to.
type addresses []netip.Addr

func (a addresses) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) { return a, nil }

var errReached = errors.New("reached")

// guardOver is a Guard whose connects to public addresses end before they leave the host:
// at once to one that ends in .1, never by themselves to any other.
func guardOver(found addresses) *Guard {
	g := New(Config{Resolver: found})
	g.dialer.ControlContext = func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		if strings.HasSuffix(address, ".1:443") {
			return errReached
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return g
}

func TestAnAddressThatNeverAnswersLeavesTimeForTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := guardOver(addresses{netip.MustParseAddr("93.184.216.9"), netip.MustParseAddr("93.184.216.1")})
		began := time.Now()
		_, err := g.DialContext(t.Context(), "tcp", "two.example:443")
		if took := time.Since(began); !errors.Is(err, errReached) || took >= dialTimeout {
			t.Errorf("after %s: %v, want the second address in less than %s", took, err, dialTimeout)
		}
	})
}

// The request that a dial is for may have ended: net/http gives the dial no deadline.
func TestADialEndsHoweverManyAddressesNeverAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		many := make(addresses, 1000)
		for i := range many {
			many[i] = netip.AddrFrom4([4]byte{93, 184, byte(i / 250), byte(i%250 + 2)})
		}
		began := time.Now()
		_, err := guardOver(many).DialContext(t.Context(), "tcp", "many.example:443")
		if took := time.Since(began); err == nil || took > dialTimeout {
			t.Errorf("after %s: %v, want a failure after %s", took, err, dialTimeout)
		}
	})
}
