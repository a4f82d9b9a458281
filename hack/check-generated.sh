#!/usr/bin/env bash
# Generates the API code, the CRDs and the OVSDB models in a copy of the tree and
# fails if they differ from the tree's.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard -- . ':!test/lab/k8s' | xargs -0 cp --parents -t "$copy"
(cd "$copy" && go generate ./api/... ./pkg/ovn/... ./pkg/ovs/...)
status=0
for dir in api deploy/crds pkg/ovn pkg/ovs; do
  diff -ru -x rapid "$dir" "$copy/$dir" || status=1
done
if [ $status != 0 ]; then echo "generated files are out of date: run make generate"; fi
exit $status
