// SPDX-License-Identifier: Apache-2.0

package story

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/lab"
)

// snapshot is the state of a node in which a tenant may leave traces, one line per
// object.
type snapshot []string

// stateScript prints every link, address, rule, route, nft rule, OVS port, OVN
// row, pin, and flow of the external bridge. With IDS=1 each line includes the object's id in
// the kernel, OVS or OVN, so that a recreated object differs.
//
// It omits only what changes by itself: timers, counters, and the l3mdev rule, which
// the kernel creates with the first VRF and never deletes.
const stateScript = `
set -u
section() { sed "s|^|$1: |"; }
if [ "$IDS" = 1 ]; then
  ip -o link | sed -E 's/^([0-9]+): ([^:@]+).*/\1 \2/' | section link
else
  ip -o link | sed -E 's/^[0-9]+: ([^:@]+).*/\1/' | section link
fi
ip -o addr | awk '{print $2, $4}' | section address
{ ip rule; ip -6 rule; } | grep -v l3mdev | section rule
{ ip route show table all; ip -6 route show table all; } | sed -E 's/ nhid [0-9]+//; s/ expires [0-9]+sec//; s/ *$//' | section route
nft -s list ruleset | section nft
while read -r socket query; do echo "$socket $(ovsdb-client query unix:$socket "$query")" | section ovsdb; done <<'EOF'
QUERIES
EOF
find /sys/fs/bpf/bulkhead | section pin
ovs-ofctl dump-flows --no-stats br-ex | sed 's/^ *//' | section flow
`

// complete returns an error unless the snapshot has lines of each kind: a node has some of each, also
// without tenants, and a command that fails in every snapshot compares nothing.
func (s snapshot) complete() error {
	for _, begin := range stateSections {
		if !slices.ContainsFunc(s, func(l string) bool { return strings.HasPrefix(l, begin) }) {
			return fmt.Errorf("no line begins with %q", begin)
		}
	}
	return nil
}

// stateSections are the beginnings of a snapshot's lines.
var stateSections = []string{"link: ", "address: ", "rule: ", "route: ", "nft: ", "row of ", "pin: ", "flow: ", "program: "}

// databaseTables are the tables of each database, by socket, whose rows are part of a
// snapshot: by name, or counted if their rows have none.
var databaseTables = []struct {
	socket, database string
	named, counted   []string
}{
	{"/var/run/openvswitch/db.sock", "Open_vSwitch", []string{"Interface"}, nil},
	{"/var/run/ovn/ovnsb_db.sock", "OVN_Southbound", []string{"Chassis"}, nil},
	{"/var/run/ovn/ovnnb_db.sock", "OVN_Northbound",
		[]string{"Logical_Switch", "Logical_Switch_Port", "Logical_Router", "Logical_Router_Port", "Port_Group", "Address_Set", "Load_Balancer", "Load_Balancer_Group", "Copp", "Meter"},
		[]string{"Logical_Router_Static_Route", "NAT", "ACL", "Logical_Router_Policy", "Gateway_Chassis", "Static_MAC_Binding", "DHCP_Options", "Meter_Band"}},
}

// databaseQueries are a line for each database: its socket and a transaction that reads
// the rows. One process for each database, because starting a process costs most.
func databaseQueries() string {
	var lines []string
	for _, d := range databaseTables {
		query := []any{d.database}
		for _, table := range append(slices.Clone(d.named), d.counted...) {
			columns := []string{"_uuid"}
			if slices.Contains(d.named, table) {
				columns = append(columns, "name")
			}
			query = append(query, map[string]any{"op": "select", "table": table, "where": []any{}, "columns": columns})
		}
		text, _ := json.Marshal(query) // of strings: cannot fail
		lines = append(lines, d.socket+" "+string(text))
	}
	return strings.Join(lines, "\n")
}

// databaseRows returns a line for each row in the reply to one of databaseQueries, which
// follows the database's socket. With ids, each line has the row's UUID; without, rows
// that have no name are counted.
func databaseRows(reply string, ids bool) ([]string, error) {
	socket, text, _ := strings.Cut(reply, " ")
	for _, d := range databaseTables {
		if d.socket != socket {
			continue
		}
		var results []struct {
			Rows []struct {
				UUID [2]string `json:"_uuid"`
				Name string
			}
			Error, Details string
		}
		tables := append(slices.Clone(d.named), d.counted...)
		if err := json.Unmarshal([]byte(text), &results); err != nil || len(results) != len(tables) {
			return nil, fmt.Errorf("read %s: %w in %.200q", d.database, cmp.Or(err, errors.New("not a result per table")), text)
		}
		var lines []string
		for i, table := range tables {
			if r := results[i]; r.Error != "" {
				return nil, fmt.Errorf("read table %s: %s: %s", table, r.Error, r.Details)
			}
			for _, row := range results[i].Rows {
				line := "row of " + table + ":"
				if ids {
					line += " " + row.UUID[1]
				}
				lines = append(lines, strings.TrimSpace(line+" "+row.Name))
			}
			if i >= len(d.named) && !ids {
				lines = append(lines[:len(lines)-len(results[i].Rows)], fmt.Sprintf("rows of %s: %d", table, len(results[i].Rows)))
			}
		}
		return lines, nil
	}
	return nil, fmt.Errorf("no database has the socket %q", socket)
}

// state takes a snapshot of the node.
func (w *World) state(ctx context.Context, node *lab.Node, ids bool) (snapshot, error) {
	flag := "0"
	if ids {
		flag = "1"
	}
	res, err := node.Run(ctx, "IDS="+flag+"\n"+strings.ReplaceAll(stateScript, "QUERIES", databaseQueries()))
	if err != nil {
		return nil, err
	}
	if res.ExitCode != 0 {
		return nil, fmt.Errorf("take the state of %s: exit %d: %s", node.Name, res.ExitCode, res.Stderr)
	}
	var lines []string
	for _, line := range nftLines(strings.Split(strings.TrimSpace(res.Stdout), "\n")) {
		if reply, ok := strings.CutPrefix(line, "ovsdb: "); ok {
			rows, err := databaseRows(reply, ids)
			if err != nil {
				return nil, fmt.Errorf("take the state of %s: %w", node.Name, err)
			}
			lines = append(lines, rows...)
			continue
		}
		lines = append(lines, line)
	}
	progs, err := bpfPrograms(ctx, node)
	if err != nil {
		return nil, err
	}
	for name, id := range progs {
		if ids {
			name = fmt.Sprintf("%s %d", name, id)
		}
		lines = append(lines, "program: "+name)
	}
	controllers, err := w.clusterControllers(ctx, node)
	if err != nil {
		return nil, err
	}
	rows, err := bpfRows(ctx, node, ids, controllers)
	if err != nil {
		return nil, err
	}
	lines = append(lines, rows...)
	slices.Sort(lines)
	return lines, nil
}

// nftLines names in each of nft's lines the table and the chain, set or map to which it belongs. It has
// a line for each element of sets and maps, which nft prints several to a line and, if they have several
// parts, in any order. Other lines stay.
func nftLines(lines []string) []string {
	var out []string
	table, block, elements, inside := "", "", "", false
	for _, line := range lines {
		text, isNFT := strings.CutPrefix(line, "nft: ")
		if !isNFT {
			out = append(out, line)
			continue
		}
		text = strings.TrimSpace(text)
		add := func(text string) { out = append(out, fmt.Sprintf("nft: %s, %s: %s", table, block, text)) }
		if name, ok := strings.CutSuffix(text, " {"); ok {
			if strings.HasPrefix(name, "table ") {
				table, block = name, ""
			} else {
				block = name
			}
		}
		if begin, ok := strings.CutPrefix(text, "elements = {"); ok {
			text, elements, inside = begin, "", true
		}
		if !inside {
			add(text)
			continue
		}
		more, ends := strings.CutSuffix(text, "}")
		elements += more
		if ends {
			for e := range strings.SplitSeq(elements, ",") {
				add("element " + strings.TrimSpace(e))
			}
			inside = false
		}
	}
	return out
}

// bpfPrograms are the loaded bh_ programs and their ids.
func bpfPrograms(ctx context.Context, node *lab.Node) (map[string]int, error) {
	var progs []struct {
		ID   int
		Name string
	}
	if err := nodeJSON(ctx, node, "bpftool -j prog show", &progs); err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, p := range progs {
		if strings.HasPrefix(p.Name, "bh_") {
			if _, twice := out[p.Name]; twice {
				return nil, fmt.Errorf("node %s: program %s is loaded twice", node.Name, p.Name)
			}
			out[p.Name] = p.ID
		}
	}
	return out, nil
}

// clusterControllers is the number of the cluster controllers on a node. Their pods may have moved to another
// node since the last snapshot, when a check replaced them.
func (w *World) clusterControllers(ctx context.Context, node *lab.Node) (int, error) {
	list, err := w.Lab.Client().CoreV1().Pods(productNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=bulkhead-cluster", FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return 0, fmt.Errorf("list the cluster controllers on %s: %w", node.Name, err)
	}
	return len(list.Items), nil
}

// bpfRows are the rows of the keyed bh_ maps, without the LRU maps, which are caches. The keys
// of bh_pods are ids of cgroups: without ids its rows are counted, without those of the cluster controllers.
func bpfRows(ctx context.Context, node *lab.Node, ids bool, controllers int) ([]string, error) {
	var maps []struct {
		ID   int
		Name string
		Type string
	}
	if err := nodeJSON(ctx, node, "bpftool -j map show", &maps); err != nil {
		return nil, err
	}
	var names, dumps []string
	for _, m := range maps {
		if strings.HasPrefix(m.Name, "bh_") && slices.Contains([]string{"hash", "lpm_trie"}, m.Type) {
			names = append(names, m.Name)
			dumps = append(dumps, fmt.Sprintf("bpftool -j map dump id %d && echo", m.ID))
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	res, err := node.Run(ctx, strings.Join(dumps, " && ")) // one command: starting a process costs most
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("dump the maps of %s: exit %d: %s", node.Name, res.ExitCode, res.Stderr)
	}
	if err != nil {
		return nil, err
	}
	var out []string
	dec := json.NewDecoder(strings.NewReader(res.Stdout))
	for _, name := range names {
		var rows []struct{ Key any }
		if err := dec.Decode(&rows); err != nil {
			return nil, fmt.Errorf("dump of map %s on %s: %w in %.200q", name, node.Name, err, res.Stdout)
		}
		if name == "bh_pods" && !ids {
			out = append(out, fmt.Sprintf("rows of map %s: %d", name, len(rows)-controllers))
			continue
		}
		for _, r := range rows {
			out = append(out, fmt.Sprintf("map %s: %v", name, r.Key))
		}
	}
	return out, nil
}

func nodeJSON(ctx context.Context, node *lab.Node, command string, into any) error {
	res, err := node.Run(ctx, command)
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		return fmt.Errorf("%s on %s: exit %d: %s", command, node.Name, res.ExitCode, res.Stderr)
	}
	if err := json.Unmarshal([]byte(res.Stdout), into); err != nil {
		return fmt.Errorf("%s on %s: %w in %.200q", command, node.Name, err, res.Stdout)
	}
	return nil
}

// difference lists the lines that one of two snapshots has and the other has not, or less often.
func difference(before, after snapshot) []string {
	lacks := func(list, other snapshot, sign string) (out []string) {
		left := map[string]int{}
		for _, l := range other {
			left[l]++
		}
		for _, l := range list {
			if left[l]--; left[l] < 0 {
				out = append(out, sign+l)
			}
		}
		return out
	}
	return append(lacks(before, after, "gone: "), lacks(after, before, "new:  ")...)
}

// states takes a snapshot of every node, with the ids of OVN rows if ids.
func (w *World) states(ctx context.Context, ids bool) (map[string]snapshot, error) {
	var mu sync.Mutex
	out := map[string]snapshot{}
	return out, each(w.Lab.Nodes(), func(n *lab.Node) error {
		s, err := w.state(ctx, n, ids)
		mu.Lock()
		defer mu.Unlock()
		out[n.Name] = s
		return err
	})
}

// asBefore waits until every node has its earlier state, as states with the same ids returned it.
func (w *World) asBefore(ctx context.Context, before map[string]snapshot, ids bool) error {
	return each(w.Lab.Nodes(), func(n *lab.Node) error {
		return w.Lab.Wait(ctx, "node "+n.Name+" to be as before", func(ctx context.Context) (bool, string, error) {
			now, err := w.state(ctx, n, ids)
			if err != nil {
				return false, "", err
			}
			d := difference(before[n.Name], now)
			return len(d) == 0, strings.Join(d, "\n"), nil
		})
	})
}

// nothingCorrected checks that audits have corrected nothing since the zones' last starts. Who
// restarts a zone calls it before.
func (w *World) nothingCorrected(ctx context.Context) error {
	return each(w.Lab.Nodes(), func(n *lab.Node) error {
		const name = "bulkhead_zone_audit_corrections_total"
		res, err := n.Run(ctx, "curl -sS --max-time 20 http://127.0.0.1:9410/metrics | grep '^"+name+" '")
		if err != nil {
			return err
		}
		if value := strings.TrimSpace(strings.TrimPrefix(res.Stdout, name)); res.ExitCode != 0 || value != "0" {
			return fmt.Errorf("node %s: audits corrected %q OVN rows, want 0: the zone's log names them: %s", n.Name, value, res.Stderr)
		}
		return nil
	})
}

// counter reads one of the agent's counters.
func counter(ctx context.Context, node *lab.Node, name string) (uint64, error) {
	var status struct {
		Counters map[string]uint64 `json:"counters"`
	}
	if err := nodeJSON(ctx, node, toolsDir+"/bulkheadctl status -o json", &status); err != nil {
		return 0, err
	}
	v, ok := status.Counters[name]
	if !ok {
		return 0, fmt.Errorf("node %s: bulkheadctl status has no counter %q, only %v", node.Name, name, status.Counters)
	}
	return v, nil
}
