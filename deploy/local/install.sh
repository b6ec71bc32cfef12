#!/bin/sh
# Installs what is missing for running and testing Skerry, by the system's own
# package manager: `install.sh postgres` (server programs only; no server is
# started), `install.sh compiler` (the race detector needs cgo) or
# `install.sh node` (the tests with JavaScript clients) or `install.sh debugtools`
# (the tools that symbolication is compared with); without the last two those
# tests are skipped, so a failure there is none.
set -eu

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null 2>&1; then
		sudo "$@"
	else
		echo "installing needs root, and there is no sudo. As root: sh $0 $what" >&2
		exit 1
	fi
}

have_postgres() {
	for dir in $(command -v postgres >/dev/null 2>&1 && dirname "$(readlink -f "$(command -v postgres)")") \
		/usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/libexec/postgresql* /usr/lib/postgresql*/bin \
		/usr/local/pgsql*/bin /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin \
		/home/linuxbrew/.linuxbrew/opt/postgresql*/bin /Applications/Postgres.app/Contents/Versions/*/bin \
		/usr/local/bin /usr/bin; do
		[ -x "$dir/postgres" ] && [ -x "$dir/initdb" ] && return 0
	done
	return 1
}

# Debian's package would make a cluster of its own and start it on port 5432.
# Nobody asked for that, so its switch is turned off for the installation.
apt_postgres() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql-common
	conf=/etc/postgresql-common/createcluster.conf
	changed=
	if [ -f "$conf" ] && ! grep -q '^create_main_cluster' "$conf"; then
		changed=yes
		as_root sh -c "echo 'create_main_cluster = false' >>$conf"
	fi
	status=0
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql || status=$?
	[ -z "$changed" ] || as_root sed -i '/^create_main_cluster = false$/d' "$conf"
	return $status
}

manager() {
	for m in apt-get dnf apk brew; do
		if command -v $m >/dev/null 2>&1; then echo $m; return; fi
	done
}

what=${1:?usage: install.sh postgres|compiler|node|debugtools}
case $what in
postgres)
	have_postgres && exit 0
	echo "No PostgreSQL server programs found; installing them."
	case $(manager) in
	apt-get) as_root apt-get update -q && apt_postgres ;;
	dnf) as_root dnf install -y -q postgresql-server ;;
	apk) as_root apk add --no-progress postgresql ;;
	brew) brew install postgresql ;;
	*) echo "no package manager that I know (apt-get, dnf, apk, brew): install the PostgreSQL server yourself" >&2; exit 1 ;;
	esac
	have_postgres || { echo "PostgreSQL was installed, but initdb and postgres are in no folder I know" >&2; exit 1; }
	;;
compiler)
	command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 && exit 0
	echo "No C compiler found, which the race detector needs; installing gcc."
	case $(manager) in
	apt-get) as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends gcc libc6-dev ;;
	dnf) as_root dnf install -y -q gcc ;;
	apk) as_root apk add --no-progress gcc musl-dev ;;
	brew) brew install gcc ;;
	*) echo "install a C compiler (gcc or clang) yourself" >&2; exit 1 ;;
	esac
	;;
node)
	command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 && exit 0
	echo "No node and npm found; trying to install them for the tests with JavaScript clients."
	case $(manager) in
	apt-get) (as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends nodejs npm) ;;
	dnf) (as_root dnf install -y -q nodejs npm) ;;
	apk) (as_root apk add --no-progress nodejs npm) ;;
	brew) brew install node ;;
	*) false ;;
	esac || echo "node is not there: the tests with JavaScript clients will be skipped" >&2
	;;
debugtools)
	missing=
	for tool in g++ clang++ ld.lld addr2line llvm-symbolizer; do
		command -v $tool >/dev/null 2>&1 || missing="$missing $tool"
	done
	if [ -n "$missing" ]; then
		echo "Not found:$missing; trying to install them for the tests of symbolication."
		case $(manager) in
		apt-get) (as_root apt-get update -q && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends g++ binutils clang lld llvm) ;;
		dnf) (as_root dnf install -y -q gcc-c++ binutils clang lld llvm) ;;
		*) false ;;
		esac || echo "some are not there: those tests will be skipped" >&2
	fi
	tools=writeplane/symbolicate/sourcemap/testdata/tools
	if [ ! -d $tools/node_modules/@jridgewell/trace-mapping ] && command -v npm >/dev/null 2>&1; then
		npm install --prefix $tools --no-package-lock --no-audit --no-fund --loglevel=error ||
			echo "the tools to compare source maps with are not there: those tests will be skipped" >&2
	fi
	;;
*) echo "usage: install.sh postgres|compiler|node|debugtools" >&2; exit 2 ;;
esac
