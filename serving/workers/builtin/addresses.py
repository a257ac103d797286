"""Which network addresses a worker may connect to: public ones, in no disguise.

`ipaddress.is_global` alone is not enough: transition addresses (6to4, NAT64, Teredo, IPv4-mapped and -compatible) carry
an inner IPv4 address, and clouds answer for their machines at addresses of their own. Sources: the IANA special-purpose
registries for IPv4 and IPv6, RFC 6052, RFC 8215.
"""

from __future__ import annotations

import ipaddress

_NETWORKS = {
    "6to4": "2002::/16",
    "NAT64": "64:ff9b::/96",
    "local NAT64": "64:ff9b:1::/48",
    "Teredo": "2001::/32",
    "IPv4-mapped": "::ffff:0:0/96",
    "IPv4-compatible": "::/96",
    "site-local": "fec0::/10",
    "ORCHID": "2001:10::/28",
    "discard": "100::/64",
    "6to4 relay": "192.88.99.0/24",
    "shared (carrier NAT)": "100.64.0.0/10",
    "this network": "0.0.0.0/8",
}
_METADATA = frozenset(
    (
        *("169.254.169.254", "169.254.170.2", "192.0.0.192", "100.100.100.200", "168.63.129.16"),
        *("fd00:ec2::254", "fd20:ce::254"),
    )
)
_REFUSED = {name: ipaddress.ip_network(network) for name, network in _NETWORKS.items()}


def obstacle(address: str) -> str | None:
    """Why no connection is made to an address; None where it is a public one.

    Args:
        address: in its usual form, as a resolver gives it.

    """
    if "%" in address:
        return "it has a zone"
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "it is no address in its usual form"
    if str(found) in _METADATA:
        return "it is a cloud's metadata service"
    for name, network in _REFUSED.items():
        if found.version == network.version and found in network:
            return f"it is a {name} address"
    kinds = ("loopback", "link_local", "private", "multicast", "unspecified", "reserved")
    for kind in kinds:
        if getattr(found, f"is_{kind}"):
            return f"it is a {kind.replace('_', '-')} address"
    return None if found.is_global else "it is no public address"
