// Package s3test runs a real S3 server for tests, from a module of its own in
// testdata. Where the module registry does not have it, SKERRY_TEST_VERSITYGW may name
// a binary of it.
package s3test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"skerry/pkg/buildtest"
)

// build builds the server once per process.
var build = sync.OnceValues(func() (string, error) {
	if built := os.Getenv("SKERRY_TEST_VERSITYGW"); built != "" {
		return built, nil
	}
	folder, err := os.MkdirTemp("", "s3server")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(folder, "s3server")
	_, here, _, _ := runtime.Caller(0)
	return binary, buildtest.Build(context.Background(), filepath.Join(filepath.Dir(here), "testdata"), "github.com/versity/versitygw/cmd/versitygw", binary)
})

const (
	s3User   = "tester"
	s3Secret = "tester-secret-0123456789"
)

// New starts a real S3 server with one bucket and returns the bucket's URL for
// blobs.Open. It sets the environment's credentials, so the test cannot be parallel.
func New(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs an S3 server")
	}
	binary, err := build()
	if errors.Is(err, buildtest.ErrNotInRegistry) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()

	server := exec.Command(binary, "--port", address, "--access", s3User, "--secret", s3Secret, "--region", "us-east-1", "--quiet", "posix", "--sidecar", t.TempDir(), t.TempDir())
	server.SysProcAttr = endsWithParent()
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	awaitListening(t, address)
	makeBucket(t, "http://"+address, "files")
	t.Setenv("AWS_ACCESS_KEY_ID", s3User)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3Secret)
	return "s3://files?region=us-east-1&use_path_style=true&endpoint=http://" + address
}

func awaitListening(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal("the S3 server does not listen")
		case <-tick.C:
		}
	}
}

func makeBucket(t *testing.T, endpoint, name string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := s3.New(s3.Options{Region: "us-east-1", BaseEndpoint: aws.String(endpoint), UsePathStyle: true,
		HTTPClient:  &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider(s3User, s3Secret, "")})
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(name)}); err != nil {
		t.Fatal(err)
	}
}
