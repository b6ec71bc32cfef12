package pulse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Centre asks the write plane for partial responses: the one question that a read
// ever asks there. It never takes longer than Patience, and never holds more than a
// bounded number of requests, so a centre that hangs costs each bundle that long at
// most and other requests nothing.
type Centre struct {
	base   *url.URL
	client *http.Client
	slots  chan struct{}
}

// Patience is how long a bundle waits for the centre: some of the 300 ms that it may
// take in all (supplement §5) are the edge's own.
const Patience = 250 * time.Millisecond

const (
	maxAsking  = 256
	maxPartial = 1<<20 + 4096 // the write plane keeps no larger ones
)

// NewCentre returns a Centre for the write plane's base address.
func NewCentre(writePlane string) (*Centre, error) {
	base, err := url.Parse(writePlane)
	if err != nil {
		return nil, fmt.Errorf("write plane address: %w", err)
	}
	return &Centre{
		base: base,
		client: &http.Client{
			Timeout: Patience,
			Transport: &http.Transport{
				MaxIdleConnsPerHost: 32, IdleConnTimeout: 20 * time.Second, DisableCompression: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		slots: make(chan struct{}, maxAsking),
	}, nil
}

// Close drops idle connections.
func (c *Centre) Close() { c.client.CloseIdleConnections() }

var errBusy = errors.New("too many questions to the centre are under way")

// Partial is the respondent's partial response as JSON; nil when there is none.
func (c *Centre) Partial(apiKey, requestID, surveyID, externalID string) (json.RawMessage, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		return nil, errBusy
	}
	target := c.base.JoinPath("api/pulse/surveys", surveyID, "partial")
	target.RawQuery = url.Values{"external_id": {externalID}}.Encode()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask for partial response: %w", err)
	}
	r.Header.Set("X-Api-Key", apiKey)
	r.Header.Set("X-Request-Id", requestID)
	answer, err := c.client.Do(r)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // its text has the URL, and that the respondent's id
		}
		return nil, fmt.Errorf("ask for partial response: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxPartial+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read partial response: %w", err)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("ask for partial response: status %d", answer.StatusCode)
	case len(body) > maxPartial:
		return nil, fmt.Errorf("partial response larger than %d bytes", maxPartial)
	}
	var found struct {
		Partial json.RawMessage `json:"partial"`
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return nil, fmt.Errorf("read partial response: %w", err)
	}
	if len(found.Partial) == 0 || bytes.Equal(found.Partial, []byte("null")) {
		return nil, nil
	}
	return found.Partial, nil
}
