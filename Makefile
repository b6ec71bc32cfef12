# Skerry's commands. `make help` lists them.

GO      ?= go
BIN     := bin/skerry
VERSION := $(shell git describe --always --dirty --tags 2>/dev/null || echo unknown)
# One static binary: the host's C library plays no part in it.
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'
# Arguments for `make up` and `make bench`, as in `make up ARGS="--edges 3"`.
ARGS    ?=
# Packages to test, as in `make test PKG=./edgenode/...`.
PKG     ?= ./...

.DEFAULT_GOAL := help
.PHONY: help up build test check format-check vet staticcheck layout portable bench clean postgres compiler node debugtools

help: ## explain the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: postgres build ## install what is missing, build, and run everything on this machine
	@exec $(BIN) up $(ARGS)

build: ## build bin/skerry
	@mkdir -p bin
	$(BUILD) -o $(BIN) ./deploy/skerry

test: postgres compiler node debugtools ## install what is missing and run all tests with the race detector
	$(GO) test -race -timeout 12m $(PKG)
	@# At full size, without the race detector's tenfold cost.
	$(GO) test -run 'TestBodyOf500MB|TestBombUnpacksToAGigabyte' ./edgenode/intake ./bench/hostile

check: format-check vet staticcheck layout ## format, vet, staticcheck, layout (race tests: make test)

format-check: ## fail when a file is not formatted
	@files=$$(git ls-files -co --exclude-standard '*.go' | while read -r f; do [ -f "$$f" ] && echo "$$f"; done | xargs -r gofmt -l); \
	if [ -n "$$files" ]; then echo "not formatted (run gofmt -w):"; echo "$$files"; exit 1; fi

vet: ## go vet
	$(GO) vet ./...

staticcheck: ## staticcheck, at the version go.mod names
	$(GO) tool staticcheck ./...

layout: ## the architecture's arrows and the house rules
	$(GO) test ./pkg/layout

portable: ## see whether everything compiles for macOS, tests included
	GOOS=darwin GOARCH=arm64 $(GO) vet ./...

bench: postgres build ## run one short load scenario (ARGS="--help" for more)
	@exec $(BIN) bench $(ARGS)

clean: ## remove what was built; data under .skerry stays
	rm -rf bin out

postgres: # PostgreSQL's server programs, by the system's package manager
	@sh deploy/local/install.sh postgres

compiler: # a C compiler, which the race detector needs
	@sh deploy/local/install.sh compiler

node: # node and npm, for the tests with JavaScript clients, where they can be had
	@sh deploy/local/install.sh node

debugtools: # compilers, symbolizers and a source map library that symbolication is compared with, where they can be had
	@sh deploy/local/install.sh debugtools
