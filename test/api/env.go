// SPDX-License-Identifier: Apache-2.0

// Package api runs a real kube-apiserver and etcd, as child processes on the
// loopback interface, for tests of what only a real API server does: schemas, CEL
// rules, admission, server-side apply, watches, leases.
package api

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

// BinEnv names the directory that holds etcd, kube-apiserver and
// kube-controller-manager.
const BinEnv = "BULKHEAD_K8S_BIN"

const (
	adminToken = "bulkhead-test-admin"
	// controllerToken is the cluster controller's.
	controllerToken = "bulkhead-test-controller"
	// ControllerUser is the user of Env.Controller: the service account to which
	// deploy/ grants permissions and which its admission policies name.
	ControllerUser = "system:serviceaccount:bulkhead-system:bulkhead-cluster"
)

// Options are a test's needs beyond an API server.
type Options struct {
	// ControllerManager runs Kubernetes' own controllers of namespaces, garbage
	// collection and aggregated roles.
	ControllerManager bool
	// Fairness enables the server's priority and fairness, as in a cluster;
	// without it the server does not throttle requests.
	Fairness bool
	Log      io.Writer // output of the child processes; nil for a file in Dir
}

// Env is a running API server.
type Env struct {
	Admin      *rest.Config // has all permissions
	Controller *rest.Config // has the permissions of the shipped RBAC rules
	Dir        string

	procs []*exec.Cmd
	logs  []io.Closer
	bin   string
	log   io.Writer
}

// Start runs etcd and kube-apiserver and waits until the API is ready.
func Start(ctx context.Context, o Options) (*Env, error) {
	e := &Env{bin: os.Getenv(BinEnv), log: o.Log}
	if e.bin == "" {
		return nil, fmt.Errorf("%s is not set: set it to the directory with etcd, kube-apiserver and kube-controller-manager, or run go test -short", BinEnv)
	}
	var err error
	if e.Dir, err = os.MkdirTemp("", "bulkhead-api-"); err != nil {
		return nil, fmt.Errorf("create a directory for the API server: %w", err)
	}
	if err := e.start(ctx, o); err != nil {
		return nil, errors.Join(err, e.Stop())
	}
	return e, nil
}

func (e *Env) start(ctx context.Context, o Options) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	etcd, peer, api := ports[0], ports[1], ports[2]
	key, err := e.serviceAccountKey()
	if err != nil {
		return err
	}
	tokens := filepath.Join(e.Dir, "tokens.csv")
	users := adminToken + ",admin,1,\"system:masters\"\n" + controllerToken + "," + ControllerUser + ",2\n"
	if err := os.WriteFile(tokens, []byte(users), 0o600); err != nil {
		return fmt.Errorf("write the token file: %w", err)
	}
	local := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	if err := e.run("etcd",
		"--data-dir="+filepath.Join(e.Dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=http://"+local(etcd), "--advertise-client-urls=http://"+local(etcd),
		"--listen-peer-urls=http://"+local(peer), "--initial-cluster=default=http://"+local(peer),
		"--initial-advertise-peer-urls=http://"+local(peer), "--log-level=warn"); err != nil {
		return err
	}
	fairness := []string{"--enable-priority-and-fairness=false", "--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000"}
	if o.Fairness {
		fairness = nil
	}
	if err := e.run("kube-apiserver", append(fairness,
		"--etcd-servers=http://"+local(etcd), "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(api),
		"--cert-dir="+filepath.Join(e.Dir, "certs"), "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key, "--token-auth-file="+tokens, "--authorization-mode=RBAC",
		"--allow-privileged", "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none")...); err != nil {
		return err
	}
	e.Admin = &rest.Config{Host: "https://" + local(api), BearerToken: adminToken, QPS: 1000, Burst: 2000,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	e.Controller = rest.CopyConfig(e.Admin)
	e.Controller.BearerToken = controllerToken
	if err := e.waitReady(ctx); err != nil {
		return err
	}
	if !o.ControllerManager {
		return nil
	}
	kubeconfig := filepath.Join(e.Dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(Kubeconfig(e.Admin)), 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return e.run("kube-controller-manager", "--kubeconfig="+kubeconfig, "--secure-port=0", "--leader-elect=false",
		"--controllers=namespace-controller,garbage-collector-controller,clusterrole-aggregation-controller", "--service-account-private-key-file="+key)
}

// Kubeconfig returns the text of a kubeconfig file for c.
func Kubeconfig(c *rest.Config) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %q}}]
`, c.Host, c.BearerToken)
}

// Stop kills the child processes and removes their files.
func (e *Env) Stop() error { return errors.Join(e.Halt(), os.RemoveAll(e.Dir)) }

// Halt kills the child processes and keeps their files, with the logs.
func (e *Env) Halt() error {
	var errs []error
	for i := len(e.procs) - 1; i >= 0; i-- { // the API server before etcd
		p := e.procs[i]
		_ = p.Process.Signal(syscall.SIGKILL) // nothing is worth a graceful shutdown
		_ = p.Wait()
	}
	for _, l := range e.logs {
		errs = append(errs, l.Close())
	}
	e.procs, e.logs = nil, nil
	return errors.Join(errs...)
}

// PID returns the process id of the named child, or 0.
func (e *Env) PID(name string) int {
	if i := e.index(name); i >= 0 {
		return e.procs[i].Process.Pid
	}
	return 0
}

// Kill kills the named child, as a crash would.
func (e *Env) Kill(name string) error {
	i := e.index(name)
	if i < 0 {
		return fmt.Errorf("kill %s: no such child", name)
	}
	if err := e.procs[i].Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	_ = e.procs[i].Wait() // it was killed
	return nil
}

// Restart starts a killed child with its old arguments, ports and files, and waits
// until the API is ready.
func (e *Env) Restart(ctx context.Context, name string) error {
	i := e.index(name)
	if i < 0 {
		return fmt.Errorf("restart %s: no such child", name)
	}
	old := e.procs[i]
	cmd := exec.Command(old.Path, old.Args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = old.Stdout, old.Stderr, old.Dir
	if err := StartChild(cmd); err != nil {
		return fmt.Errorf("restart %s: %w", name, err)
	}
	e.procs[i] = cmd
	return e.waitReady(ctx)
}

func (e *Env) index(name string) int {
	return slices.IndexFunc(e.procs, func(c *exec.Cmd) bool { return filepath.Base(c.Path) == name })
}

func (e *Env) run(name string, args ...string) error {
	log := e.log
	if log == nil {
		f, err := os.Create(filepath.Join(e.Dir, name+".log"))
		if err != nil {
			return fmt.Errorf("create the log of %s: %w", name, err)
		}
		e.logs = append(e.logs, f)
		log = f
	}
	cmd := exec.Command(filepath.Join(e.bin, name), args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, e.Dir
	if err := StartChild(cmd); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	e.procs = append(e.procs, cmd)
	return nil
}

// StartChild starts cmd such that the kernel kills it when this process ends.
func StartChild(cmd *exec.Cmd) error {
	if runtime.GOOS == "linux" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	// Pdeathsig is sent when the thread that started the child ends, not the process.
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread lives as long as the process
		started <- cmd.Start()
		select {}
	}()
	return <-started
}

func (e *Env) waitReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(e.Admin)
	if err != nil {
		return fmt.Errorf("create an HTTP client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.Admin.Host+"/readyz", nil)
		if err != nil {
			return fmt.Errorf("create a request: %w", err)
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tail, _ := os.ReadFile(filepath.Join(e.Dir, "kube-apiserver.log"))
			return fmt.Errorf("wait for the API server: %w: %w\n%s", context.Cause(ctx), err, tail[max(0, len(tail)-2000):])
		}
	}
}

func (e *Env) serviceAccountKey() (string, error) {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", fmt.Errorf("generate a service account key: %w", err)
	}
	file := filepath.Join(e.Dir, "sa.key")
	b := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)})
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return "", fmt.Errorf("write the service account key: %w", err)
	}
	return file, nil
}

// freePorts returns n free TCP ports. It keeps all listeners open until the last
// is found, so that the ports differ.
func freePorts(n int) ([]int, error) {
	var out []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		out = append(out, l.Addr().(*net.TCPAddr).Port)
	}
	return out, nil
}
