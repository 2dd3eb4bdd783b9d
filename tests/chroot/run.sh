#!/usr/bin/env bash
# Proves README's first command on a machine that has nothing: a fresh Debian 12 with git, python3 and
# python3-venv, made by debootstrap in a folder of its own. Needs root. What it takes from this machine is copied:
# where packages come from (apt sources, pip configuration), certificates, name resolution. Nothing is mounted but
# an empty /proc.
#
#   tests/chroot/run.sh
#
# The finished root is kept as an archive in COLIBRI_CACHE (default: ~/.cache/colibri), so the next run starts from
# there; delete the archive for a new debootstrap.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
suite=bookworm
packages=git,python3,python3-venv
cache=${COLIBRI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/colibri}
archive=$cache/debian-$suite-${packages//,/-}.tar
limit=1500                                      # seconds for the README's command

say() { echo "chroot: $*"; }
[ "$(id -u)" -eq 0 ] || { say "needs root (debootstrap and chroot)"; exit 4; }
command -v debootstrap >/dev/null || {
    say "installing debootstrap"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends debootstrap >/dev/null
}

root=$(mktemp -d "${TMPDIR:-/tmp}/colibri-chroot.XXXXXX")
finish() {
    mountpoint -q "$root/proc" && umount "$root/proc"
    rm -rf --one-file-system "$root"
}
trap finish EXIT

if [ ! -f "$archive" ]; then
    read -r mirror keyring < <(python3 "$top/tests/chroot/mirror.py" $suite)
    say "debootstrap of $suite"
    debootstrap --variant=minbase --include=$packages ${keyring:+--keyring="$keyring"} \
        $suite "$root" "$mirror" >"$root.log" 2>&1 || { tail -20 "$root.log"; rm -f "$root.log"; exit 1; }
    rm -f "$root.log"
    mkdir -p "$cache"
    tar -C "$root" --exclude=./proc/* --exclude=./sys/* -cf "$archive.$$" . && mv "$archive.$$" "$archive"
else
    say "unpacking $archive"
    tar -C "$root" -xf "$archive"
fi

chmod 755 "$root"                               # mktemp made it private

# ---- what the machine knows about its network ----
copy() { [ ! -e "$1" ] || { mkdir -p "$root$(dirname "$1")"; cp -aL "$1" "$root$(dirname "$1")/"; }; }
for path in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/xdg/pip "$HOME/.config/pip" "$HOME/.pip" \
    "${PIP_CONFIG_FILE:-}" "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt; do
    [ -z "$path" ] || copy "$path"
done
mapfile -t variables < <(env | grep -E '^(PIP_[A-Z_]+|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy)=')

# ---- the README's first command, in a clone ----
git clone --quiet --no-hardlinks "file://$top" "$root/srv/colibri"
python3 "$top/tests/chroot/first_command.py" "$top/README.md" >"$root/srv/first-command.sh"
say "the README's first command:"
sed 's/^/    /' "$root/srv/first-command.sh"
mount -t proc proc "$root/proc"
start=$SECONDS
timeout $limit chroot "$root" /usr/bin/env -i HOME="$HOME" PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    ${variables[@]+"${variables[@]}"} \
    /bin/bash -ec "cd /srv/colibri && . /srv/first-command.sh" | tee "$root/srv/output"
say "took $((SECONDS - start)) s"
python3 "$top/tests/chroot/check_output.py" "$root/srv/output"
say "ok"
