# What process 1 of a machine of tests/cluster does: its own disk, users, names and sshd; see machines.py.
#
#   machine.sh NAME FILES SOURCE SHARED VENV PYTHON
#
# NAME: host name. FILES: directory with the keys and tables that are put in place. SOURCE: what the machine has where
# the project lies. SHARED: the storage that all machines have. VENV: the project's, of which the machine gets a copy on
# write. PYTHON: prefix of the interpreter behind it.
set -eu
name=$1 files=$2 source=$3 shared=$4 venv=$5 python=$6
project=$(dirname "$venv")

hostname "$name"
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/home/.ssh /mnt/shared /mnt/files /mnt/source /mnt/python /mnt/upper /mnt/work /mnt/venv
mount --bind "$shared" /mnt/shared
mount --bind "$python" /mnt/python
cp -r "$files/." /mnt/files
cp -r "$source/." /mnt/source
sed -i "s/NAME/$name/" /mnt/files/hosts
mount -t overlay overlay -o "lowerdir=$venv,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/venv

# Nothing of the host's own files stays where Ray, ssh or the project would look for them.
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mkdir -p "$project" "$python" /run/sshd
mount --bind /mnt/source "$project"
mkdir -p "$venv"
mount --bind /mnt/venv "$venv"
mount --bind /mnt/python "$python"
for table in passwd hosts nsswitch.conf; do
    mount --bind "/mnt/files/$table" "/etc/$table"
done
cp /etc/skel/.bashrc /etc/skel/.profile /mnt/home
ln -s "$venv" /mnt/home/tinyllm-venv
cp /mnt/files/key /mnt/home/.ssh/id_ed25519
mkdir -p /mnt/home/.config/pip
cp /mnt/files/pip.conf /mnt/home/.config/pip/pip.conf

echo mounted
read -r _ # until the network is there
/usr/sbin/sshd -D -e -f /mnt/files/sshd_config &
wait
