package cohorts

import (
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sync/semaphore"

	"skerry/pkg/jsonbody"
)

// listOf is a body with a list of members of so many bytes.
func listOf(bytes int) io.Reader {
	const member = `"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456",`
	return io.MultiReader(strings.NewReader(`{"members":[`), strings.NewReader(strings.Repeat(member, bytes/len(member))), strings.NewReader(`"x"]}`))
}

func TestLongListsAreReadWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &Module{room: semaphore.NewWeighted(2 * firstRoom)}
		read := func(body io.Reader) (*body, error) {
			return m.readBody(httptest.NewRequest("POST", "/", body), "members")
		}
		first, err := read(listOf(jsonbody.Limit + 1<<10))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(listOf(firstRoom + 1<<10)); !errors.Is(err, errNoRoom) {
			t.Errorf("what takes more than is left, behind a part that it has: %v", err)
		}
		second, err := read(listOf(jsonbody.Limit + 1<<10))
		if err != nil {
			t.Fatal(err)
		}
		usual, err := read(listOf(jsonbody.Limit / 2))
		if err != nil {
			t.Errorf("a usual one beside them: %v", err)
		}
		usual.release()
		waited := make(chan error)
		go func() {
			third, err := read(listOf(jsonbody.Limit + 1<<10))
			if err == nil {
				defer third.release()
			}
			waited <- err
		}()
		synctest.Wait()
		select {
		case err := <-waited:
			t.Fatalf("nobody waits: %v", err)
		default:
		}
		first.release()
		if err := <-waited; err != nil {
			t.Errorf("when there is room: %v", err)
		}
		third, err := read(listOf(jsonbody.Limit + 1<<10))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(listOf(jsonbody.Limit + 1<<10)); !errors.Is(err, errNoRoom) {
			t.Errorf("after ten seconds: %v", err)
		}
		second.release()
		third.release()
		if !m.room.TryAcquire(2 * firstRoom) {
			t.Error("not all is given back")
		}
	})
}
