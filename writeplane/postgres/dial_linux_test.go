package postgres_test

import (
	"testing"
	"time"

	"skerry/pkg/dial/dialtest"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestConnectionsGiveUpAServerThatIsGone(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	link := dbtest.NewLink(t, db.App.Config().ConnString()) // by TCP
	through, err := postgres.Open(t.Context(), postgres.Config{URL: link.URL, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.Close)
	conn, err := through.App.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	unconfirmed, silent := dialtest.Limits(t, conn.Conn().PgConn().Conn())
	if unconfirmed <= 0 || unconfirmed > time.Minute {
		t.Errorf("bytes may stay unconfirmed for %s", unconfirmed)
	}
	if silent > time.Minute {
		t.Errorf("a silent machine is noticed after %s", silent)
	}
}
