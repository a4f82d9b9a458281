// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"

	"bulkhead/pkg/config"
)

// runZone is --role=zone: this node's OVN northbound database.
func runZone(context.Context, config.Config, *slog.Logger) error {
	return errors.New("role zone is not built into this binary yet")
}
