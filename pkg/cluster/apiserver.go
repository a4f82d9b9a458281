// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// apiServerRetry is the interval of attempts to reach the API server before the first success.
const apiServerRetry = time.Second

// waitForAPIServer waits until the API server answers. The controllers cannot be set up before, and a
// process that exits instead would wait for kubelet's growing delays once the API server is back. The end
// of ctx is no error.
func waitForAPIServer(ctx context.Context, config *rest.Config, log *slog.Logger) error {
	config = rest.CopyConfig(config)
	config.Timeout = 10 * time.Second
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("set up a client of the API server: %w", err)
	}
	failures := 0
	_ = wait.PollUntilContextCancel(ctx, apiServerRetry, true, func(ctx context.Context) (bool, error) {
		_, err := api.ServerVersion()
		if err == nil || apierrors.IsForbidden(err) {
			return true, nil
		}
		if failures++; failures%30 == 1 {
			log.Warn("cannot reach the API server, will retry: without kube-proxy its cluster IP does not answer until Bulkhead runs, so set [kubernetes] apiserver", "host", config.Host, "error", err)
		}
		return false, nil
	})
	return nil
}
