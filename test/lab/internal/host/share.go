// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"bulkhead/test/lab/internal/build"
	"bulkhead/test/lab/internal/guest"
)

// fillShare writes the machines' programs and configuration to the share and builds
// the nodes' disk of it.
func (s Spec) fillShare(ctx context.Context) error {
	bin := s.path("share/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("create the share: %w", err)
	}
	for _, program := range []string{
		filepath.Join(s.Artifacts.Tools, "labinit"), filepath.Join(s.Artifacts.Tools, "loopback"), filepath.Join(s.Artifacts.Kubernetes, "kubelet"),
		filepath.Join(s.Artifacts.RootFS, "usr/bin/crun"),
	} {
		if err := linkOrCopy(program, filepath.Join(bin, filepath.Base(program))); err != nil {
			return err
		}
	}
	if err := os.Mkdir(s.path("share", filepath.Base(guest.ImagesDir)), 0o755); err != nil {
		return fmt.Errorf("create the images' mount point: %w", err)
	}
	if err := os.WriteFile(filepath.Join(bin, filepath.Base(guest.ContainerRuntime)), []byte(strings.ReplaceAll(containerRuntime, "CRUN", guest.ShareDir+"/bin/crun")), 0o755); err != nil {
		return fmt.Errorf("write the container runtime: %w", err)
	}
	files := map[string]string{"config/containerd.toml": containerdConfig()}
	for _, n := range s.Nodes {
		files["nodes/"+n.Name+"/kubelet.yaml"] = kubeletConfig(n.Name, s.Families)
	}
	for name, content := range files {
		path := s.path("share", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("create the directory of %s: %w", path, err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	for _, n := range s.Nodes {
		if err := writeJSON(s.path("share/nodes", n.Name+".json"), s.machineConfig(n)); err != nil {
			return err
		}
	}
	if err := build.Initramfs(s.Artifacts.RootFS, s.initramfs()); err != nil {
		return err
	}
	return build.Disk(ctx, s.path("share"), s.shareDisk(), os.Stderr)
}

// initramfs is the nodes' initial file system, which mounts their disks.
func (s Spec) initramfs() string { return s.path("initramfs") }

// shareDisk is the disk image of the share, which the nodes mount.
func (s Spec) shareDisk() string { return s.path("share.img") }

func (s Spec) machineConfig(m Machine) guest.Config {
	c := guest.Config{Name: m.Name, Token: s.Token, Addresses: m.Addresses, Gateways: gateways(s.Families), Management: m.Management, AgentUplink: s.AgentUplink}
	for _, other := range append(append([]Machine(nil), s.Nodes...), s.External) {
		for _, a := range other.Addresses {
			c.Hosts = append(c.Hosts, guest.Host{Name: other.Name, Address: a.Addr()})
		}
	}
	return c
}

// linkOrCopy hard-links a program into the share, or copies it from another file system.
func linkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy %s into the share: %w", from, err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return fmt.Errorf("copy %s into the share: %w", from, err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("copy %s into the share: %w", from, err)
	}
	return out.Close()
}

// containerdConfig uses crun: runc re-executes itself twice per container, which makes a
// pod's start 50 % slower on an emulated node.
func containerdConfig() string {
	return strings.NewReplacer("PAUSE", build.PauseImage, "RUNTIME", guest.ContainerRuntime).Replace(`version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile", "io.containerd.tracing.processor.v1.otlp", "io.containerd.nri.v1.nri"]

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "PAUSE"
  device_ownership_from_security_context = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "crun"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
        BinaryName = "RUNTIME"
        SystemdCgroup = false
`)
}

// containerRuntime runs crun, which is what takes the most time when an emulated node
// starts and stops pods:
//   - crun copies itself into memory and executes the copy, so that no container can
//     change it. A program on a read-only file system, as the share is, need not be copied
//     if the variable is set.
//   - containerd deletes every container twice and signals deleted ones. The answers are
//     given here, in the words that containerd knows.
//   - containerd kills a "delete" that takes 10 seconds, and crun then fails for ever on
//     what is half deleted: the pod's sandbox and interfaces stay. Here crun goes on.
//
// containerd passes "--root DIR" first.
const containerRuntime = `#!/bin/busybox sh
export _LIBCONTAINER_CLONED_BINARY=1
root=$2
exists() {
	for arg; do
		[ ! -e "$root/$arg/status" ] || return 0
	done
	return 1
}
case " $* " in
*" delete "* | *" kill "*) ;;
*) exec CRUN "$@" ;;
esac
if exists "$@"; then
	CRUN "$@"
	code=$?
	[ $code != 0 ] || exit 0
	! exists "$@" || exit $code
fi
echo "the container does not exist" >&2
case " $* " in
*" --force "*) exit 0 ;;
esac
exit 1
`

func kubeletConfig(node string, f Families) string {
	var servers []string
	for _, a := range DNSAddresses(f) {
		servers = append(servers, `"`+a.String()+`"`)
	}
	return strings.NewReplacer("DIR", guest.ShareDir+"/nodes/"+node, "SERVERS", strings.Join(servers, ", ")).Replace(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: DIR/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: DIR/kubelet.crt
tlsPrivateKeyFile: DIR/kubelet.key
staticPodPath: /etc/kubernetes/manifests
resolvConf: /etc/resolv.conf
clusterDomain: cluster.local
clusterDNS: [SERVERS]
failSwapOn: false
readOnlyPort: 0
nodeStatusUpdateFrequency: 10s
nodeStatusReportFrequency: 60s
volumeStatsAggPeriod: 10m
# Images and pods are in memory, not on a disk.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
# Without thresholds, kubelet does not collect every container's statistics every ten seconds.
evictionHard: {memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
localStorageCapacityIsolation: false
enforceNodeAllocatable: [pods]
maxPods: 100
# Tests kill processes again and again.
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
shutdownGracePeriod: 0s
`)
}
