// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
	"bulkhead/pkg/cluster/podaddr"
	"bulkhead/pkg/cluster/udn"
)

// collector counts the cached objects on every scrape, so that it needs no state.
// The number of series does not grow with the number of networks. Latencies and
// queue depths are controller-runtime's own metrics
// (controller_runtime_reconcile_time_seconds, workqueue_depth).
type collector struct {
	cache      client.Reader
	ready      func() bool // whether the cache is synced
	allocators map[string]func() (used, limit int)
	addresses  func() []podaddr.Usage

	networks, conditions, used, limit, addressesUsed, fullest *prometheus.Desc
}

func newCollector(cache client.Reader, ready func() bool, allocators map[string]func() (used, limit int), addresses func() []podaddr.Usage) *collector {
	return &collector{
		cache: cache, ready: ready, allocators: allocators, addresses: addresses,
		networks: prometheus.NewDesc("bulkhead_networks", "UserDefinedNetworks and ClusterUserDefinedNetworks.",
			[]string{"kind", "topology", "role", "transport"}, nil),
		conditions: prometheus.NewDesc("bulkhead_network_conditions", "Networks by the status and reason of their conditions.",
			[]string{"kind", "condition", "status", "reason"}, nil),
		used:  prometheus.NewDesc("bulkhead_allocator_used", "Ids that an allocator has allocated.", []string{"allocator"}, nil),
		limit: prometheus.NewDesc("bulkhead_allocator_limit", "Ids that an allocator can allocate.", []string{"allocator"}, nil),
		addressesUsed: prometheus.NewDesc("bulkhead_pod_addresses_used", "Addresses that pods and IPAMClaims hold on Layer2 and Localnet networks.",
			[]string{"family"}, nil),
		fullest: prometheus.NewDesc("bulkhead_pod_addresses_fullest_ratio", "Ratio of allocated addresses in the fullest Layer2 or Localnet network.",
			[]string{"family"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.networks, c.conditions, c.used, c.limit, c.addressesUsed, c.fullest} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for name, count := range c.allocators {
		used, limit := count()
		out <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(used), name)
		out <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(limit), name)
	}
	used, fullest := map[string]float64{"ipv4": 0, "ipv6": 0}, map[string]float64{}
	for _, u := range c.addresses() {
		used[u.Family] += float64(u.Used)
		fullest[u.Family] = max(fullest[u.Family], float64(u.Used)/u.Size)
	}
	for family, n := range used {
		out <- prometheus.MustNewConstMetric(c.addressesUsed, prometheus.GaugeValue, n, family)
		out <- prometheus.MustNewConstMetric(c.fullest, prometheus.GaugeValue, fullest[family], family)
	}
	if !c.ready() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	networks, conditions := map[[4]string]float64{}, map[[4]string]float64{}
	count := func(r *udn.Request, have []metav1.Condition) {
		kind := r.Kind()
		networks[[4]string{kind, strings.ToLower(string(r.Topology)), strings.ToLower(string(r.Role)), strings.ToLower(string(r.Transport))}]++
		for _, x := range have {
			conditions[[4]string{kind, x.Type, string(x.Status), x.Reason}]++
		}
	}
	var udns udnv1.UserDefinedNetworkList
	if c.cache.List(ctx, &udns, client.UnsafeDisableDeepCopy) == nil { // fails only during shutdown
		for i := range udns.Items {
			count(udn.FromUDN(&udns.Items[i]), udns.Items[i].Status.Conditions)
		}
	}
	var cudns udnv1.ClusterUserDefinedNetworkList
	if c.cache.List(ctx, &cudns, client.UnsafeDisableDeepCopy) == nil {
		for i := range cudns.Items {
			count(udn.FromCUDN(&cudns.Items[i]), cudns.Items[i].Status.Conditions)
		}
	}
	for labels, n := range networks {
		out <- prometheus.MustNewConstMetric(c.networks, prometheus.GaugeValue, n, labels[:]...)
	}
	for labels, n := range conditions {
		out <- prometheus.MustNewConstMetric(c.conditions, prometheus.GaugeValue, n, labels[:]...)
	}
}
