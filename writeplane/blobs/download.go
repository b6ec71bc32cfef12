package blobs

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"

	"skerry/pkg/problem"
	"skerry/writeplane/access"
)

// DownloadPath is where a folder's files are downloaded; the object's name follows.
const DownloadPath = "/api/v1/downloads/"

// DefaultExpiry is how long a download URL opens (supplement §6).
const DefaultExpiry = 10 * time.Minute

// SignedURL is an address at which anybody may GET the object, as a file of the given
// name, until the returned time. Method and object are part of the signature.
func (s *Store) SignedURL(ctx context.Context, key, filename string, expiry time.Duration) (string, time.Time, error) {
	if err := validKey(key); err != nil {
		return "", time.Time{}, err
	}
	expires := time.Now().Add(expiry).Truncate(time.Second)
	if s.IsFolder() {
		query := url.Values{"expires": {strconv.FormatInt(expires.Unix(), 10)}, "filename": {filename}}
		query.Set("signature", s.sign(http.MethodGet, key, query))
		return s.publicURL + DownloadPath + key + "?" + query.Encode(), expires, nil
	}
	signed, err := s.bucket.SignedURL(ctx, key, &blob.SignedURLOptions{
		Expiry: expiry, Method: http.MethodGet,
		BeforeSign: func(as func(any) bool) error {
			var input *s3.GetObjectInput
			if as(&input) {
				input.ResponseContentDisposition = aws.String(disposition(filename))
				input.ResponseContentType = aws.String(contentType(filename))
			}
			return nil
		},
	})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign download: %w", err)
	}
	return signed, expires, nil
}

func (s *Store) sign(method, key string, query url.Values) string {
	mac := hmac.New(sha256.New, s.signKey)
	_, _ = fmt.Fprintf(mac, "%s\n%s\n%s\n%s", method, key, query.Get("expires"), query.Get("filename"))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// ErrSignature is the 403 of a download URL that was altered, is used with another
// method or for another object, or has expired.
var ErrSignature = problem.New(problem.Forbidden, "invalid_signature")

// Download serves a folder's file (GET and HEAD /api/v1/downloads/{key...}). It is
// registered for every method, because a signature for GET is no leave for anything else.
func (s *Store) Download(w http.ResponseWriter, r *http.Request, _ *access.Call) error {
	key, query, method := r.PathValue("key"), r.URL.Query(), r.Method
	if method == http.MethodHead {
		method = http.MethodGet // it says less than a GET does
	}
	expires, err := strconv.ParseInt(query.Get("expires"), 10, 64)
	if err != nil || !hmac.Equal([]byte(query.Get("signature")), []byte(s.sign(method, key, query))) || time.Now().Unix() >= expires {
		return ErrSignature
	}
	reader, err := s.Open(r.Context(), key)
	if errors.Is(err, ErrNotFound) {
		return access.ErrNotFound
	}
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	filename := query.Get("filename")
	header := w.Header()
	header.Set("Content-Disposition", disposition(filename))
	header.Set("Content-Type", contentType(filename))
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	header.Set("Cache-Control", "private, no-store")
	http.ServeContent(w, r, "", reader.ModTime(), reader)
	return nil
}

// disposition tells a browser to save and never to show.
func disposition(filename string) string {
	if value := mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(strings.ReplaceAll(filename, `\`, "/"))}); value != "" {
		return value
	}
	return "attachment"
}

// contentType is never one that a browser would run.
func contentType(filename string) string {
	if strings.HasSuffix(filename, ".csv") {
		return "text/csv; charset=utf-8"
	}
	return "application/octet-stream"
}
