package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"skerry/bench/load"
	"skerry/bench/report"
	"skerry/bench/rig"
)

// nginx is a peer measured in the same run: one nginx process on the measured core
// that serves a response's body as a static file, with a tag of its own making. It
// knows neither keys nor projects nor changes; it shows what a file server does.
type nginx struct {
	*rig.Process
	folder, address string
}

// nginxSettings: one process, no log, the file's descriptor and facts kept open.
const nginxSettings = `daemon off;
master_process off;
pid %[1]s/nginx.pid;
error_log stderr crit;
events { worker_connections 1024; }
http {
	access_log off;
	server_tokens off;
	keepalive_requests 1000000000;
	open_file_cache max=16;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server {
		listen %[2]s;
		root %[1]s;
		location / {
			default_type application/json;
			add_header Cache-Control "private, max-age=300";
			try_files /answer =404;
		}
	}
}
`

func startNginx(ctx context.Context, path string, body []byte) (*nginx, error) {
	folder, err := os.MkdirTemp("", "skerry-nginx-")
	if err != nil {
		return nil, fmt.Errorf("make nginx's folder: %w", err)
	}
	n := &nginx{folder: folder}
	if err := n.start(ctx, path, body); err != nil {
		_ = os.RemoveAll(folder)
		return nil, fmt.Errorf("start nginx: %w", err)
	}
	return n, nil
}

func (n *nginx) start(ctx context.Context, path string, body []byte) error {
	if err := os.Chmod(n.folder, 0o755); err != nil { // nginx serves as another user when root starts it
		return err
	}
	if err := os.WriteFile(filepath.Join(n.folder, "answer"), body, 0o644); err != nil {
		return err
	}
	// nginx cannot say which port it was given, so a free one is found for it.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	n.address = free.Addr().String()
	if err := free.Close(); err != nil {
		return err
	}
	settings := filepath.Join(n.folder, "nginx.conf")
	if err := os.WriteFile(settings, fmt.Appendf(nil, nginxSettings, n.folder, n.address), 0o644); err != nil {
		return err
	}
	if n.Process, err = rig.Start(ctx, rig.Config{Path: path, Args: []string{"-e", "stderr", "-c", settings}, Core: serverCore}); err != nil {
		return err
	}
	for {
		conn, err := net.Dial("tcp", n.address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-n.Done():
			return errors.New(n.Stderr())
		case <-ctx.Done():
			n.Kill()
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (n *nginx) end() {
	n.Kill()
	_ = os.RemoveAll(n.folder)
}

// peer is nginx under the load of a pair. A nil peer measures nothing.
type peer struct {
	server  *nginx
	request []byte
	figure  report.Figure
}

// peer prepares nginx to answer as the pair's server does: the same body, and 304 to
// nginx's own tag. It is nil where the pair has no file and where nginx is not
// installed.
func (b *bench) peer(ctx context.Context, p pair) (*peer, error) {
	if p.file == nil {
		return nil, nil
	}
	path, err := exec.LookPath("nginx")
	if err != nil {
		b.say("nginx is not installed, so %s has no peer beside it", p.name)
		return nil, nil
	}
	_, _, body, err := load.Get(p.edge.Address, p.file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	server, err := startNginx(ctx, path, body)
	if err != nil {
		return nil, err
	}
	request := p.file
	if p.status == 304 {
		if request, err = revalidation(server.address, p.file); err != nil {
			server.end()
			return nil, fmt.Errorf("%s, nginx: %w", p.name, err)
		}
	}
	return &peer{server: server, request: request, figure: report.Figure{
		Scenario: p.scenario, Name: "nginx, a file: " + p.name, Unit: "requests/s", BaselineName: "bare fasthttp",
	}}, nil
}

// measure adds one repetition, beside the yardstick's of the same repetition.
func (n *peer) measure(ctx context.Context, b *bench, p pair, yard float64) error {
	if n == nil {
		return nil
	}
	result, busy, err := b.closedLoop(ctx, n.server.Process, load.Plan{Address: n.server.address, Requests: load.Same(n.request), Conns: p.conns}, n.figure.Name)
	if err != nil {
		return err
	}
	f := &n.figure
	if !result.OnlyStatus(p.status) {
		f.Invalid = fmt.Sprintf("%s; want only %d", result.Answers(), p.status)
	} else if busy < least {
		f.Invalid = fmt.Sprintf("nginx's core was %.0f%% busy; a pair counts from %.0f%%", 100*busy, 100*least)
	}
	f.AddPair(result.Throughput(), yard)
	f.Busy = append(f.Busy, busy)
	f.Latency = report.Quantiles(result.Latency)
	return nil
}

func (n *peer) end() {
	if n != nil {
		n.server.end()
	}
}
