# Two commands do everything on a fresh machine: `make run` and `make test`.
# The environment is `.venv` in this clone; templates lie in the state directory, by content, so
# clones share them without disturbing each other.

BIN := .venv/bin
PYTEST := $(BIN)/pytest
TEMPLATES := python data

# Our interpreter starts a thousand times in the tests; without its bytecode each start compiles
# what it imports, which takes longer than all the rest. Only bootstrap hears of it: who sets it
# has everything compiled at once.
unexport PYTHONDONTWRITEBYTECODE
BOOTSTRAP := PYTHONDONTWRITEBYTECODE=$(PYTHONDONTWRITEBYTECODE) scripts/bootstrap

.PHONY: run test check static plain deployment operations vm bench simulation ledger soak walls proofs fleet cluster losses upstream versions harbor mutants clean environment dev templates

run: environment templates
	$(BIN)/cellwall demo

# Several at once: what an engine or a server leaves is counted for that one alone, by its process and
# its owner label. Tests that need the machine to themselves are marked `alone` and come after the
# others of their stage. Frameworks bring threads and hooks of their own into a process, so they have
# one apart.
APART := tests/unit tests/meta
LANGUAGES := tests/languages tests/contexts
ELSEWHERE := $(addprefix --ignore=,$(APART) $(LANGUAGES) tests/server tests/agents tests/fleet)

test: dev templates
	$(PYTEST) -n 3 $(APART)
	$(PYTEST) -n 3 --dist loadfile -m "not slow and not alone" $(ELSEWHERE)
	$(PYTEST) -m "alone and not slow" $(ELSEWHERE)
	$(PYTEST) -n 3 --dist loadfile tests/server
	$(PYTEST) -n 2 --dist loadgroup $(LANGUAGES)
	$(PYTEST) -n 2 tests/agents
	$(PYTEST) tests/fleet

# The jail's contract and attacks with everything of `jail/fast` off, then the attacks on sandboxes of
# a quick fork-server, which a single run has: two minutes.
PLAIN := tests/contract/runtimes/test_jail.py tests/attack/corpus/test_attack_privilege.py \
	tests/attack/corpus/test_attack_files.py tests/attack/corpus/test_attack_processes.py \
	tests/attack/walls/test_attack_posture.py
plain: dev templates
	CELLWALL_FAST=0 timeout 600 $(PYTEST) -n 2 --dist loadfile -m "not alone and not slow" $(PLAIN)
	CELLWALL_TEST_FORK_SERVER=quick timeout 600 $(PYTEST) -n 2 --dist loadfile \
		-m "not alone and not slow" $(filter tests/attack/%,$(PLAIN)) tests/attack/jail/test_attack_alone.py

check: static
	$(BIN)/pytest -n 2 $(APART)

static: dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

# The image in a real container engine, the service's walls: minutes, as root, with what .ci/run
# installs for it.
deployment: dev templates
	$(BIN)/pytest -m "slow or not slow" tests/deploy

# Every command of docs/operations.md, as root on Debian: two minutes.
operations: dev
	$(BIN)/pytest -m slow tests/deploy/test_operations.py

# cgroup v2 and systemd as users have them: a stock Debian in an emulator, as root, an hour.
vm:
	tests/vm/run

# Half an hour, CI takes two minutes of it; half a minute before that goes to a server that leaks
# on purpose and has to be found out.
soak: dev templates
	PYTHONPATH=tests $(BIN)/python -m soak

# What takes a second road to a wall of `make test`: the contract on gVisor through Docker, as root; some
# minutes.
walls: dev templates
	$(PYTEST) -n 3 --dist loadfile -m "slow and not alone" tests/contract/runtimes tests/attack/walls

# Copies, pauses, restarts and hostile clients in full, as root; an hour. CI has the same tests with small counts. With
# packages of a systemd in CELLWALL_TEST_SYSTEMD, tests/deploy/test_restart.py goes beside it.
proofs: dev templates
	CELLWALL_TEST_PROGRAMS=200 CELLWALL_TEST_ROOTLESS=40 $(PYTEST) -s tests/contract/state/test_copies_property.py \
		tests/contract/state/test_copies_rootless.py
	CELLWALL_TEST_FORKS=1000 $(PYTEST) -s -k many tests/attack/jail/test_attack_copies_ends.py
	CELLWALL_TEST_MUTATIONS=10000 $(PYTEST) -s tests/attack/jail/test_attack_copies_mutated.py
	CELLWALL_TEST_STEPS=200 $(PYTEST) -s -k "not engine" tests/faults/sandboxes/test_faults_copy_steps.py
	CELLWALL_TEST_STEPS=40 $(PYTEST) -s -k engine tests/faults/sandboxes/test_faults_copy_steps.py
	CELLWALL_TEST_KEPT=100 CELLWALL_TEST_KILLS=50 $(PYTEST) -s tests/server/durable/test_durable_kills.py
	CELLWALL_TEST_PAUSED=500 CELLWALL_TEST_PAUSED_S=60 $(PYTEST) -s tests/server/state/test_server_pause_crowd.py
	CELLWALL_TEST_FUZZ_S=600 $(PYTEST) -s tests/server/doors/test_door_e2b_hostile.py

# Fleets on clusters of Ray's, in network namespaces, and ten thousand programs through each way to lose a
# machine; as root, an hour.
fleet: dev templates
	$(PYTEST) -m "slow or not slow" tests/fleet

# The suites of the server with a gateway in front of each of its servers, but what tests/kit/cluster/left_out.py
# names; an hour. SUITES="tests/server/streams" takes some of them.
cluster: dev templates
	CELLWALL_TEST_GATEWAY=1 $(PYTEST) -n 2 --dist loadfile $(or $(SUITES),tests/server)

# What a cluster loses, in full: ten thousand programs through each loss of a node and of gateways, three hundred
# sessions, a directory that is away for a minute, clocks, quotas, turns, ten gigabytes; as root, forty minutes.
losses: dev templates
	CELLWALL_TEST_PROGRAMS=10000 $(PYTEST) -s tests/cluster/losses/test_cluster_network.py tests/cluster/losses/test_cluster_gateway_killed.py
	CELLWALL_TEST_SESSIONS=300 $(PYTEST) -s tests/cluster/losses/test_cluster_sessions.py
	CELLWALL_TEST_AWAY_S=60 $(PYTEST) -s -k away tests/cluster/directory/test_cluster_directory.py
	CELLWALL_TEST_ROUNDS=100 $(PYTEST) -s tests/cluster/directory/test_cluster_directory_quotas.py
	CELLWALL_TEST_CROWD=10000 $(PYTEST) -s tests/cluster/operators/test_cluster_fair.py
	$(PYTEST) -s tests/cluster/losses/test_cluster_clocks.py tests/cluster/test_cluster_inside_node.py
	$(PYTEST) -s -m "slow or not slow" tests/cluster/test_cluster_large.py

# E2B's own suites of its SDKs, from checkouts of its repositories; npm for those in JavaScript. Twenty
# minutes. UPSTREAM="-k words" takes some of the tests in Python.
upstream: dev templates
	PYTHONPATH=tests $(BIN)/python -m upstream $(if $(E2B),--e2b $(E2B)) \
		$(if $(INTERPRETER),--interpreter $(INTERPRETER)) $(UPSTREAM)

# What others release: E2B's SDKs of the last year against the door (VERSIONS=--newest takes those that the
# registries call the newest), and frameworks that are clients of MCP. For a schedule; some minutes, and npm.
versions: dev templates
	PYTHONPATH=tests $(BIN)/python -m upstream.versions $(VERSIONS)
	$(PYTEST) -m slow tests/agents/test_agents_mcp_clients.py

# Harbor's tasks by both of its ways here, with the Python of the next Debian in a root that debootstrap
# makes, as root; three minutes, and one more the first time.
harbor: dev templates
	$(PYTEST) -m slow tests/agents/test_agents_harbor.py

# Some ten minutes; BENCH="--quick --only soak" takes those rows in seconds and writes nothing.
bench: dev templates
	PYTHONPATH=tests:bench $(BIN)/python bench/with_docker.py $(BIN)/python -m cellwall_bench \
		$(or $(BENCH),--write bench/RESULTS.md)

# Ten thousand nodes and a million sandboxes around the gateway's own choosing code; some minutes.
simulation: dev
	PYTHONPATH=bench $(BIN)/python -m simulation --write bench/SIMULATION.md

environment:
	@$(BOOTSTRAP)

dev:
	@$(BOOTSTRAP) --dev

# After the environment, whichever of the two the goal asked for.
templates: | $(if $(filter test deployment,$(MAKECMDGOALS)),dev,environment)
	@$(BIN)/cellwall templates build $(TEMPLATES)

# 10,000 queued programs and servers that are killed, twenty times; takes an hour or so.
ledger: dev templates
	PYTHONPATH=tests:bench $(BIN)/python -m kit.server.rehearsal --count 10000 --rounds 20

# Each guard of tests/mutants left out once, in a copy of this clone: its tests have to fail. Twenty
# minutes, as root; MUTANTS="--quick --share 4" takes a quarter of what needs no sandbox, as CI does.
mutants: dev templates
	PYTHONPATH=tests $(BIN)/python -m mutants.leave_out $(MUTANTS)

clean:
	rm -rf .venv .tools .bootstrap.lock .pytest_cache .ruff_cache .mypy_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
