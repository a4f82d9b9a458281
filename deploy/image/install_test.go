// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
	"bulkhead/pkg/ovs/uplink"
)

// installed returns the pods in deploy/install.yaml and the configuration in deploy/config.yaml.
func installed(t *testing.T) (map[string]corev1.PodSpec, map[string]string) {
	t.Helper()
	var manifests []byte
	for _, name := range []string{"../config.yaml", "../install.yaml"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(append(manifests, "---\n"...), data...)
	}
	pods, files := map[string]corev1.PodSpec{}, map[string]string{}
	// The pod template is in the same place in every workload.
	var object struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Data              map[string]string     `json:"data"`
		Spec              appsv1.DeploymentSpec `json:"spec"`
	}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096); ; {
		o := object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if o.Kind == "FlowSchema" || o.Kind == "PodDisruptionBudget" {
			continue // another spec
		} else if err != nil {
			t.Fatal(err)
		}
		switch o.Kind {
		case "ConfigMap":
			files = o.Data
		case "DaemonSet", "Deployment":
			pods[o.Name] = o.Spec.Template.Spec
		}
	}
	return pods, files
}

// mountOf returns the volume mounted at a path or above.
func mountOf(c corev1.Container, file string) (corev1.VolumeMount, bool) {
	for _, m := range c.VolumeMounts {
		if file == m.MountPath || strings.HasPrefix(file, m.MountPath+"/") {
			return m, true
		}
	}
	return corev1.VolumeMount{}, false
}

// TestOwnPorts checks that the range of ports that tenants' host-network pods may not take has those of all
// processes.
func TestOwnPorts(t *testing.T) {
	pods, _ := installed(t)
	ports := 0
	for name, spec := range pods {
		for _, c := range spec.Containers {
			for _, p := range c.Ports {
				if ports++; p.ContainerPort < network.OwnPortFirst || p.ContainerPort > network.OwnPortLast {
					t.Errorf("%s, container %s: port %d is not between %d and %d", name, c.Name, p.ContainerPort, network.OwnPortFirst, network.OwnPortLast)
				}
			}
		}
	}
	if ports < 4 {
		t.Errorf("%d ports, want those of the agent and three controllers", ports)
	}
}

// TestInstallFitsTheImage checks that every program that deploy/install.yaml
// starts, and the plugin that the agent copies to the node, is in the image.
func TestInstallFitsTheImage(t *testing.T) {
	inImage := map[string]bool{}
	for _, layer := range fakeImages(t)[0].Layers {
		for _, f := range layer {
			inImage[f.Path] = f.Mode == 0 || f.Mode&0o111 != 0
		}
	}
	pods, files := installed(t)
	if len(pods) != 3 || len(files) == 0 {
		t.Fatalf("%d workloads and %d files of configuration, want 3 and some", len(pods), len(files))
	}
	for name, pod := range pods {
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			where := name + "/" + c.Name
			if c.Image != Name {
				t.Errorf("%s runs %s; the image's name is %s", where, c.Image, Name)
			}
			if len(c.Command) == 0 || !inImage[c.Command[0]] {
				t.Errorf("%s runs %v, which is not a program of the image", where, c.Command)
			}
			for _, m := range c.VolumeMounts {
				for file := range inImage {
					if strings.HasPrefix(file, m.MountPath+"/") {
						t.Errorf("%s: the volume %s hides %s", where, m.Name, file)
					}
				}
			}
			for _, arg := range c.Command {
				file, ok := strings.CutPrefix(arg, "--config=")
				if !ok {
					continue
				}
				if m, mounted := mountOf(c, file); !mounted || m.Name != "config" || files[path.Base(file)] == "" {
					t.Errorf("%s: %s is not a file of the mounted ConfigMap", where, file)
				}
			}
		}
	}
	for name, text := range files {
		c, err := config.Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !inImage[c.CNI.Plugin] {
			t.Errorf("%s: the CNI plugin %s is not a program of the image", name, c.CNI.Plugin)
		}
		for _, pod := range pods {
			for _, container := range pod.Containers {
				if container.Command[0] != "/usr/bin/agent" {
					continue
				}
				for _, at := range []string{c.CNI.BinDir, c.CNI.ConfDir, c.CNI.Socket, c.BPFPinPath, c.CgroupRoot, uplink.DefaultRecord} {
					if _, ok := mountOf(container, at); !ok {
						t.Errorf("%s: the agent's %s is in no volume, so the node does not have it", name, at)
					}
				}
			}
		}
	}
}

// TestToolsAreInTheImage checks that the image has every program that the
// product executes, and none that it does not. The firewall executes nft in
// knftables.
func TestToolsAreInTheImage(t *testing.T) {
	inImage, executed := map[string]bool{}, map[string]bool{"nft": true}
	for _, tool := range tools {
		inImage[path.Base(tool)] = true
	}
	// pkg/trace executes what its method run is given. Every call of either kind must
	// name its program, so that a program in a variable does not escape this test.
	direct := regexp.MustCompile(`exec\.(?:LookPath|Command(?:Context)?)\((?:ctx, )?("[^"]*")?`)
	byTrace := regexp.MustCompile(`\bn\.run\((?:ctx, )?("[^"]*")?`)
	// pkg/bgpstatus executes the command by which the operator runs FRR's shell.
	const trace, variable = "../../pkg/trace/run.go", "exec.CommandContext(ctx, "
	variables := map[string]int{trace: 0, "../../pkg/bgpstatus/read.go": 0}
	for _, dir := range []string{"../../cmd", "../../pkg"} {
		if err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			source, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			calls := direct.FindAllStringSubmatch(string(source), -1)
			if strings.HasPrefix(file, path.Dir(trace)+"/") {
				calls = append(calls, byTrace.FindAllStringSubmatch(string(source), -1)...)
			}
			for _, m := range calls {
				if _, ok := variables[file]; ok && m[0] == variable {
					variables[file]++
					continue
				}
				name := strings.Trim(m[1], `"`)
				executed[name] = true
				if !inImage[name] {
					t.Errorf("%s executes %s), which is not in the image", file, m[0])
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for file, n := range variables {
		if n != 1 {
			t.Errorf("%s executes a program in a variable in %d places, want 1", file, n)
		}
	}
	for tool := range inImage {
		if !executed[tool] {
			t.Errorf("the image has %s, which nothing executes", tool)
		}
	}
}

// TestInstallProbes checks that kubelet asks every process at a loopback address: from all others a
// process accepts a limited number of connections, which anybody can use up.
func TestInstallProbes(t *testing.T) {
	pods, _ := installed(t)
	probes := 0
	for name, pod := range pods {
		for _, c := range pod.Containers {
			for kind, p := range map[string]*corev1.Probe{"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe, "startup": c.StartupProbe} {
				if p == nil && kind == "startup" {
					continue
				}
				if p == nil || p.HTTPGet == nil || p.HTTPGet.Host != "127.0.0.1" {
					t.Errorf("%s/%s: the %s probe does not ask 127.0.0.1", name, c.Name, kind)
					continue
				}
				if !slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.Name == p.HTTPGet.Port.StrVal }) {
					t.Errorf("%s/%s: the %s probe asks port %s, which the container does not have", name, c.Name, kind, p.HTTPGet.Port.String())
				}
				probes++
			}
		}
	}
	if probes < 8 { // two or more of four processes
		t.Errorf("%d probes", probes)
	}
}
