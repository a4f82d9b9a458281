// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// FRRNamespace is the namespace of frr-k8s.
const FRRNamespace = "frr-k8s-system"

const frrFiles = "/etc/frr_reloader" // frr-k8s' own path

// FRRStatus is the file in which frr-k8s' reloader notes on a node when it last reloaded FRR, in
// seconds, and "success" or "failure".
const FRRStatus = frrFiles + "/.status"

// startFRR starts FRR with the options that a full mesh needs: bgpd listens. watchfrr restarts
// daemons that die, and a new zebra keeps the routes of the one before it (-K), as in frr-k8s' pods.
const startFRR = `set -e
mkdir -p ` + frrFiles + ` /var/run/frr
cat > /etc/frr/daemons <<END
bgpd=yes
bfdd=yes
vtysh_enable=yes
zebra_options="  -A 127.0.0.1 -K 120 -s 90000000"
mgmtd_options="  -A 127.0.0.1"
bgpd_options="   -A 127.0.0.1 -p 179"
staticd_options="-A 127.0.0.1"
bfdd_options="   -A 127.0.0.1"
END
echo 'service integrated-vtysh-config' > /etc/frr/vtysh.conf
printf 'frr defaults traditional\nhostname %s\n' "$(hostname)" > /etc/frr/frr.conf
chown -R frr:frr /etc/frr /var/run/frr
/usr/lib/frr/frrinit.sh start >/var/log/frrinit.log 2>&1`

// startFRRK8s starts the controller of frr-k8s and its reloader, which outlive the command.
const startFRRK8s = `cd ` + frrFiles + `
setsid bash frr-reloader.sh >/var/log/frr-reloader.log 2>&1 </dev/null &
KUBECONFIG=` + frrFiles + `/kubeconfig FRR_K8S_BGP_DEBOUNCE_TIMEOUT=500 setsid nohup ./frr-k8s-controller --node-name="$(hostname)" \
  --namespace=` + FRRNamespace + ` --metrics-bind-address=127.0.0.1:9140 >/var/log/frr-k8s.log 2>&1 </dev/null &
KUBECONFIG=` + frrFiles + `/kubeconfig setsid nohup ./frr-status --node-name="$(hostname)" --namespace=` + FRRNamespace + ` \
  --pod-name="frr-$(hostname)" --poll-interval=10s >/var/log/frr-status.log 2>&1 </dev/null &
for i in $(seq 100); do [ -e reloader.pid ] && exit 0; sleep 0.1; done; exit 1`

// stopFRR ends a reload too, which has processes of its own. What FRR leaves of its routes, to
// resume after a restart, goes as well.
const stopFRR = `pkill -KILL -x 'frr-k8s-control|frr-status'
[ ! -e ` + frrFiles + `/reloader.pid ] || kill -KILL -- -"$(cat ` + frrFiles + `/reloader.pid)"
/usr/lib/frr/frrinit.sh stop >/dev/null 2>&1
rm -rf ` + frrFiles + `
ip route flush proto bgp; ip -6 route flush proto bgp`

// killFRRK8s leaves FRR, and a reload that it has begun, to itself.
const killFRRK8s = `pkill -KILL -x 'frr-k8s-control|frr-status'
[ ! -e ` + frrFiles + `/reloader.pid ] || kill -KILL "$(cat ` + frrFiles + `/reloader.pid)"
rm -f ` + frrFiles + `/reloader.pid`

// HasBGP reports whether the lab was started with FRR and frr-k8s.
func (l *Lab) HasBGP() bool { return l.state.BGP }

// InstallFRR installs frr-k8s, and FRR on each node.
func (l *Lab) InstallFRR(ctx context.Context) error {
	crds, err := filepath.Glob(filepath.Join(l.FRRK8s(), "*.yaml"))
	if err != nil {
		return err
	}
	manifests := []string{"{apiVersion: v1, kind: Namespace, metadata: {name: " + FRRNamespace + "}}"}
	for _, n := range l.Nodes() { // FRR and frr-k8s run beside kubelet, and frr-status names its pod
		manifests = append(manifests, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: frr-%s, namespace: %s}, spec: {nodeSelector: {of: nobody}, containers: [{name: frr, image: none}]}}", n.Name, FRRNamespace))
	}
	for _, file := range crds {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		manifests = append(manifests, string(data))
	}
	for _, m := range manifests {
		if err := l.Apply(ctx, m); err != nil {
			return err
		}
	}
	kubeconfig, err := l.Kubeconfig()
	if err != nil {
		return err
	}
	return l.onNodes(func(n *Node) error {
		if err := n.Script(ctx, startFRR); err != nil {
			return fmt.Errorf("start FRR: %w", err)
		}
		for _, name := range []string{"frr-k8s-controller", "frr-status", "frr-reloader.sh"} {
			data, err := os.ReadFile(filepath.Join(l.FRRK8s(), name))
			if err != nil {
				return err
			}
			if err := n.Put(ctx, frrFiles+"/"+name, data, 0o755); err != nil {
				return err
			}
		}
		if err := n.Put(ctx, frrFiles+"/kubeconfig", kubeconfig, 0o600); err != nil {
			return err
		}
		return n.Script(ctx, startFRRK8s)
	})
}

// KillFRRK8s kills the processes of frr-k8s on all nodes, and StartFRRK8s starts them again.
func (l *Lab) KillFRRK8s(ctx context.Context) error {
	return l.onNodes(func(n *Node) error { return n.Script(ctx, killFRRK8s) })
}

// StartFRRK8s starts what KillFRRK8s has killed.
func (l *Lab) StartFRRK8s(ctx context.Context) error {
	return l.onNodes(func(n *Node) error { return n.Script(ctx, startFRRK8s) })
}

// RemoveFRR stops FRR, whose routes go with it, and deletes the objects of frr-k8s but its
// namespace. It reports whether there were any.
func (l *Lab) RemoveFRR(ctx context.Context) (installed bool, err error) {
	crds := l.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	list, err := crds.List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for _, c := range list.Items {
		if strings.HasSuffix(c.GetName(), ".frrk8s.metallb.io") {
			installed = true
			if err := crds.Delete(ctx, c.GetName(), metav1.DeleteOptions{}); err != nil {
				return installed, err
			}
		}
	}
	if !installed {
		return false, nil
	}
	return true, l.onNodes(func(n *Node) error { return n.Script(ctx, stopFRR) })
}

// onNodes calls f for all nodes, side by side.
func (l *Lab) onNodes(f func(*Node) error) error {
	errs := make([]error, len(l.nodes))
	var running sync.WaitGroup
	for i, n := range l.nodes {
		running.Go(func() { errs[i] = f(n) })
	}
	running.Wait()
	return errors.Join(errs...)
}
