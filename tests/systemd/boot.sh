#!/bin/sh
# Boots systemd as PID 1 of namespaces of its own, on a root of its own: the host's, read-only beneath an overlay, with fresh
# /proc, /sys, /dev, /run, /tmp, /var and /home. What systemd would do to a machine it does to that.
#
# boot.sh outside CGROUP FOLDER REPOSITORY PYTHON SITE    makes the namespaces; CGROUP is an empty cgroup of version 2
# boot.sh inside FOLDER REPOSITORY PYTHON SITE            is PID 1, and becomes systemd
# boot.sh try FOLDER REPOSITORY PYTHON SITE               ends well where the other two can work
# boot.sh container FOLDER REPOSITORY PYTHON SITE RUN USER COMMAND...   the same without systemd: the command is PID 1, of
#                                                         another user (a number), and of the host it sees RUN at /run/pagetier, read-only
set -eu

outside() {
    cgroup=$1
    shift
    echo $$ > "$cgroup/cgroup.procs"
    exec unshare --fork --kill-child --pid --mount --uts --ipc --cgroup --net "$0" inside "$@"
}

fresh() { # a file system of its own at a folder of the new root
    mount -t tmpfs -o "mode=$2,size=${3:-256m}" tmpfs "$root/$1"
}

devices() {
    fresh dev 755
    mkdir "$root/dev/shm" "$root/dev/pts" "$root/dev/mqueue"
    for device in null zero full random urandom tty; do
        cp -a "/dev/$device" "$root/dev/$device"
    done
    fresh dev/shm 1777 1g
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    mount -t mqueue mqueue "$root/dev/mqueue"
    ln -s /proc/self/fd "$root/dev/fd"
}

kernel() {
    mount -t proc proc "$root/proc"
    mount --bind "$root/proc/sys" "$root/proc/sys"
    mount -o remount,bind,ro "$root/proc/sys"
    mount -t sysfs -o ro sysfs "$root/sys"
}

seen_at() { # a folder of the host, read-only, at another place
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
}

root_of_its_own() {
    mount --make-rprivate /
    folder=$1 repository=$2 python=$3 site=$4
    mount -t tmpfs tmpfs "$folder"
    root=$folder/root
    mkdir "$folder/upper" "$folder/work" "$root"
    mount -t overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"
    rm -rf "$root/etc/pagetier"
    seen_at "$repository" /opt/pagetier
    seen_at "$python" /opt/python
    seen_at "$site" /opt/site
    for place in run var home; do fresh $place 755; done
    fresh tmp 1777
    mkdir "$root/var/lib" "$root/var/log" "$root/old"
    mkdir -m 1777 "$root/var/tmp"
    kernel
    devices
}

enter() { # the old root is gone after this
    cd "$root"
    pivot_root . old
    cd /
    umount --lazy /old
}

inside() {
    root_of_its_own "$@"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    echo 0123456789abcdef0123456789abcdef > "$root/etc/machine-id"
    fresh etc/systemd/system 755
    cp "$repository"/tests/systemd/units/* "$root/etc/systemd/system"
    enter
    exec env -i container=pagetier-test PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
        SYSTEMD_UNIT_PATH=/etc/systemd/system \
        /lib/systemd/systemd --system --unit=pagetier-test.target --log-target=console --log-level=warning --show-status=no
}

try() { # whether all of this may be done here; says on stderr what may not
    exec unshare --fork --kill-child --pid --mount --uts --ipc --cgroup --net "$0" tried "$@"
}

tried() {
    root_of_its_own "$@"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    enter
}

container() {
    exec unshare --fork --kill-child --pid --mount --uts --ipc --cgroup --net "$0" contained "$@"
}

contained() {
    root_of_its_own "$1" "$2" "$3" "$4"
    seen_at "$5" /run/pagetier
    user=$6
    shift 6
    enter
    exec setpriv --pdeathsig=KILL --reuid="$user" --regid="$user" --clear-groups "$@"
}

what=$1
shift
$what "$@"
