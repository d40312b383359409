# shardctl's look at the key of a server, whose content it prints nowhere: owner, mode, and who
# runs this; whether it has a passphrase; whether it is the key of the certificate, which comes by
# standard input. It needs a POSIX shell and coreutils, and compares where there is openssl.

export LC_ALL=C

key=$1
printf '%s %s\n' "$(stat -L -c '%u %a' -- "$key")" "$(id -u)"

encrypted=no
! grep -q ENCRYPTED -- "$key" || encrypted=yes
printf 'encrypted %s\n' "$encrypted"

fits=
certificate=$(cat)
if [ "$encrypted" = no ] && [ -n "$certificate" ] && command -v openssl >/dev/null; then
    of_certificate=$(printf '%s\n' "$certificate" | openssl x509 -noout -pubkey 2>/dev/null)
    of_key=$(openssl pkey -in "$key" -passin pass: -pubout 2>/dev/null)
    if [ -n "$of_certificate" ]; then
        fits=no
        [ "$of_certificate" != "$of_key" ] || fits=yes
    fi
fi
printf 'fits %s\n' "$fits"
