package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

var client = &http.Client{Timeout: 30 * time.Second}

// Gauge reads one metric without labels from the operator's listener at an address.
func Gauge(ctx context.Context, address, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("read metric %s: %w", name, err)
	}
	request.Close = true // an open connection would count among what the process holds
	response, err := client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("read metric %s: %w", name, err)
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, errors.Join(fmt.Errorf("the metrics do not name %s", name), lines.Err())
}
