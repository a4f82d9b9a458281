// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bulkhead/test/lab/internal/sys"
)

// startControlPlane starts etcd and the Kubernetes control plane, and waits until the
// API server is ready.
func (s Spec) startControlPlane(ctx context.Context, c *children) error {
	program := func(name string) string { return filepath.Join(s.Artifacts.Kubernetes, name) }
	pki := func(name string) string { return s.path("pki", name) }
	// In memory: the cluster's data need not outlive the lab.
	if err := (sys.Mount{Kind: "tmpfs", Target: s.path("etcd"), Options: "mode=700"}).Do(); err != nil {
		return err
	}
	if err := os.Mkdir(s.path("etcd/data"), 0o700); err != nil {
		return fmt.Errorf("create etcd's directory: %w", err)
	}
	const etcd = "http://127.0.0.1:2379"
	if err := c.keepRunning("etcd", program("etcd"), "--data-dir="+s.path("etcd/data"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls=http://127.0.0.1:2380",
		"--log-level=warn"); err != nil {
		return err
	}
	if err := c.keepRunning("kube-apiserver", program("kube-apiserver"),
		"--etcd-servers="+etcd, "--secure-port="+strconv.Itoa(apiPort), "--bind-address=::", "--advertise-address="+APIHost(s.Families),
		"--service-cluster-ip-range="+strings.Join(ServiceCIDRs(s.Families), ","), "--egress-selector-config-file="+s.egressConfig(),
		"--tls-cert-file="+pki("apiserver.crt"), "--tls-private-key-file="+pki("apiserver.key"), "--client-ca-file="+pki("ca.crt"),
		"--kubelet-client-certificate="+pki("kubelet-client.crt"), "--kubelet-client-key="+pki("kubelet-client.key"),
		"--kubelet-certificate-authority="+pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+pki("service-accounts.key"),
		"--service-account-signing-key-file="+pki("service-accounts.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		// On two busy cores requests are slow: do not reject them as well.
		"--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0",
		"--profiling=false",
	); err != nil {
		return err
	}
	if err := waitReady(ctx, "https://127.0.0.1:"+strconv.Itoa(apiPort)+"/readyz"); err != nil {
		return err
	}
	if err := c.keepRunning("kube-controller-manager", program("kube-controller-manager"),
		"--kubeconfig="+pki("controller-manager.kubeconfig"), "--use-service-account-credentials=true", "--leader-elect=false",
		"--service-account-private-key-file="+pki("service-accounts.key"), "--root-ca-file="+pki("ca.crt"),
		"--allocate-node-cidrs=false", "--bind-address=127.0.0.1", "--node-monitor-grace-period=60s",
	); err != nil {
		return err
	}
	return c.keepRunning("kube-scheduler", program("kube-scheduler"),
		"--kubeconfig="+pki("scheduler.kubeconfig"), "--leader-elect=false", "--bind-address=127.0.0.1")
}

func waitReady(ctx context.Context, url string) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DialContext: (&net.Dialer{}).DialContext,
		// It checks health only, on this namespace's loopback.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	defer client.CloseIdleConnections()
	last := "no response"
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		response, err := client.Get(url)
		if err != nil {
			last = err.Error()
			continue
		}
		response.Body.Close()
		if last = response.Status; response.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("the API server is not ready: %s", last)
}
