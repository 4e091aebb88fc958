# What there is to do, each in one command. CMake does the work; build/ is the only folder that appears.
BUILD = build
PREFIX = /usr/local

.PHONY: build demo test chaos bench lint install packages clean

# Trains a small model on the English of the machine's licence texts, kills a rank in step 20, brings it back in
# step 40, and makes a page with charts of it.
demo: build
	scripts/demo-text $(BUILD)/demo/english.txt
	$(BUILD)/evenkeel train --config examples/tiny.yaml --kill 20:1.2 --rejoin 40:1.2 \
		--metrics $(BUILD)/demo/metrics.jsonl
	$(BUILD)/evenkeel report $(BUILD)/demo/metrics.jsonl -o $(BUILD)/demo/run.html --title "evenkeel's demo"
	@echo "charts: $(BUILD)/demo/run.html"

test: build
	ctest --test-dir $(BUILD) --output-on-failure -j2

# The soak test of `test` with ten times as many failures, and the whole job killed five times as often.
chaos: build
	EK_SOAK_FAILURES=2000 EK_SOAK_KILLS=50 ctest --test-dir $(BUILD) --output-on-failure -V -R '^(soak|resume)$$'

bench: build
	bench/run

build: packages
	[ -f $(BUILD)/build.ninja ] || cmake -S . -B $(BUILD) -G Ninja
	ninja -C $(BUILD)

# Installs what the build needs from Debian's packages, where something is missing.
packages:
	scripts/install-packages build

lint:
	scripts/install-packages build lint
	scripts/lint

# PREFIX and DESTDIR say where to.
install: build
	DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"

clean:
	rm -rf $(BUILD) $(BUILD)-*
