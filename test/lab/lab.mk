# The lab: a real cluster in virtual machines, see test/lab/README.md.
# Included by the Makefile at the root of the repository.

NODES ?= 2
FAMILIES ?= ipv4
GATEWAY ?= shared
TRANSPORT ?= geneve
# On: FRR on each node, and frr-k8s.
BGP ?= off
KVM ?= auto
LAB := bin/lab

# What the lab needs besides Go: as command:package.
LAB_DEPS := qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap mke2fs:e2fsprogs

.PHONY: lab lab-down lab-shell lab-status lab-build lab-deps lab-bin

lab-bin:
	@mkdir -p bin
	@CGO_ENABLED=0 go build -buildvcs=false -o $(LAB) ./test/lab/cmd/lab

lab: lab-deps lab-bin ## start the lab and install the product (NODES=1..4 FAMILIES=ipv4|ipv6|dual GATEWAY=shared|local BGP=on TRANSPORT=geneve|no-overlay KVM=auto|on|off)
	@$(LAB) up --nodes=$(NODES) --families=$(FAMILIES) --gateway=$(GATEWAY) --transport=$(TRANSPORT) $(if $(filter on,$(BGP)),--bgp) --kvm=$(KVM)

lab-down: lab-bin ## stop the lab
	@$(LAB) down

lab-status: lab-bin ## show the lab's nodes
	@$(LAB) status

lab-shell: lab-bin ## open a terminal on a node (NODE=node1, or external)
	@$(LAB) shell $(or $(NODE),node1)

lab-build: lab-deps lab-bin ## fill the caches (root file system, Kubernetes, images)
	@$(LAB) build

# Installs the missing packages of a list of command:package and /file:package. It
# updates the package lists only if the installation fails with the present ones.
define install_missing
	missing=; \
	for d in $(1); do case $$d in \
	  /*) [ -e $${d%%:*} ] || missing="$$missing $${d##*:}";; \
	  *) command -v $${d%%:*} >/dev/null || missing="$$missing $${d##*:}";; \
	esac; done; \
	export DEBIAN_FRONTEND=noninteractive; \
	install() { apt-get install -y -q --no-install-recommends "$$@" || { apt-get update -q && apt-get install -y -q --no-install-recommends "$$@"; }; }; \
	if [ -n "$$missing" ]; then install $$missing || exit 1; fi
endef

lab-deps: ## install the Debian packages that the lab needs
	@$(call install_missing,$(LAB_DEPS))
