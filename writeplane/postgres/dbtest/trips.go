package dbtest

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
)

// CountTrips makes the connections of pools with this config count how often something
// was sent and then waited for.
func CountTrips(config *pgxpool.Config) *atomic.Int64 {
	trips := new(atomic.Int64)
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &countedConn{Conn: conn, trips: trips}, err
	}
	return trips
}

type countedConn struct {
	net.Conn
	trips *atomic.Int64
	asked atomic.Bool
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(p)
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.asked.Swap(false) {
		c.trips.Add(1)
	}
	return n, err
}
