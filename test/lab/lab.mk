# The lab: a real cluster in virtual machines, see test/lab/README.md.
# Included by the Makefile at the root of the repository.

NODES ?= 2
FAMILIES ?= ipv4
KVM ?= auto
LAB := bin/lab

# What the lab needs besides Go: as command:package.
LAB_DEPS := qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap

.PHONY: lab lab-down lab-shell lab-status lab-build lab-deps lab-bin

lab-bin:
	@mkdir -p bin
	@CGO_ENABLED=0 go build -buildvcs=false -o $(LAB) ./test/lab/cmd/lab

## lab: bring the lab up with the product in it (NODES=1..4 FAMILIES=ipv4|dual KVM=auto|on|off)
lab: lab-deps lab-bin
	@$(LAB) up --nodes=$(NODES) --families=$(FAMILIES) --kvm=$(KVM)

## lab-down: end the lab
lab-down: lab-bin
	@$(LAB) down

## lab-status: what runs
lab-status: lab-bin
	@$(LAB) status

## lab-shell: a terminal on a node (NODE=node1, or external)
lab-shell: lab-bin
	@$(LAB) shell $(or $(NODE),node1)

## lab-build: fill the caches (root file system, Kubernetes, images)
lab-build: lab-deps lab-bin
	@$(LAB) build

# Installs what is missing, and asks for new package lists only if the ones
# that are there do not do.
## lab-deps: install the Debian packages that the lab needs
lab-deps:
	@missing=; \
	for d in $(LAB_DEPS); do command -v $${d%%:*} >/dev/null || missing="$$missing $${d##*:}"; done; \
	if [ ! -x /usr/lib/qemu/virtiofsd ] && [ ! -x /usr/libexec/virtiofsd ]; then \
	  if [ -e /usr/share/doc/qemu-system-common ] || ! apt-cache show virtiofsd >/dev/null 2>&1; then \
	    missing="$$missing qemu-system-common"; fi; \
	  if apt-cache show virtiofsd >/dev/null 2>&1; then missing="$$missing virtiofsd"; fi; \
	fi; \
	[ -z "$$missing" ] && exit 0; \
	install="apt-get install -y -q --no-install-recommends $$missing"; \
	export DEBIAN_FRONTEND=noninteractive; \
	$$install || { apt-get update -q && $$install; }
