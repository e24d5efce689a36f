//! Addresses that HTTP tools may reach: public ones, and those in the operator's list.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use ipnet::IpNet;
use url::{Host, Url};

/// Ports at which most hosts serve: there a name or a private address is seldom that of this service. If a
/// name resolves to loopback, the service refuses the request, because it has a foreign `Host`.
const SHARED_PORTS: [u16; 2] = [80, 443];

/// The operator's list `TURNWHEEL_HTTP_TOOLS_ALLOW`, and permission for loopback in `dev`.
#[derive(Clone, Debug, Default)]
pub struct AddressRules {
    entries: Vec<AllowedAddress>,
    is_loopback_allowed: bool,
    own_ports: OwnPorts,
}

/// Ports at which this process serves, shared by all clients of its tools. A tool that reaches them acts
/// as a user of the service.
#[derive(Clone, Debug, Default)]
pub struct OwnPorts(Arc<RwLock<Vec<u16>>>);

impl OwnPorts {
    pub fn set(&self, ports: Vec<u16>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = ports;
    }

    pub fn to_vec(&self) -> Vec<u16> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn contains(&self, port: u16) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&port)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedAddress {
    Net(IpNet),
    Address { ip: IpAddr, port: u16 },
    Name { name: String, port: Option<u16> },
}

/// Error: tools may not reach the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressNotAllowed {
    /// Not public, and not listed.
    Private,
    /// A port of this service itself. No list allows it.
    Own,
}

impl fmt::Display for AddressNotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Private => {
                "the address is private, local or reserved; an operator can list it in TURNWHEEL_HTTP_TOOLS_ALLOW"
            }
            Self::Own => "the address is that of this service itself, which no tool may call",
        })
    }
}

impl std::error::Error for AddressNotAllowed {}

/// Addresses to which the host name of a URL may resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressScope {
    Public,
    /// Private addresses too, because the operator listed the name.
    Listed,
}

impl AddressRules {
    /// Parses a list of `host`, `host:port`, addresses and CIDR ranges, separated by commas or
    /// spaces.
    ///
    /// # Errors
    /// One sentence for each invalid item. Report them to the operator.
    pub fn parse(list: &str) -> Result<Self, Vec<String>> {
        let items = list
            .split(|letter: char| letter == ',' || letter.is_whitespace())
            .filter(|item| !item.is_empty());
        let (mut entries, mut wrong) = (Vec::new(), Vec::new());
        for item in items {
            match AllowedAddress::parse(item) {
                Some(entry) => entries.push(entry),
                None => wrong.push(format!(
                    "TURNWHEEL_HTTP_TOOLS_ALLOW: `{item}` is not host, host:port or a CIDR range like 10.0.0.0/8"
                )),
            }
        }
        if wrong.is_empty() { Ok(Self { entries, ..Self::default() }) } else { Err(wrong) }
    }

    /// Also allows loopback addresses, for `dev`.
    #[must_use]
    pub fn with_loopback(self) -> Self {
        Self { is_loopback_allowed: true, ..self }
    }

    /// Ports that no tool may reach, unless at a public address.
    #[must_use]
    pub fn with_own_ports(self, own_ports: OwnPorts) -> Self {
        Self { own_ports, ..self }
    }

    /// True if the list contains a host name.
    pub(super) fn has_host_names(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry, AllowedAddress::Name { .. }))
    }

    /// Checks a literal address here, because no resolver sees it. A host name is checked again
    /// when it is resolved.
    pub(super) fn check_url(&self, url: &Url) -> Result<AddressScope, AddressNotAllowed> {
        let port = url.port_or_known_default().unwrap_or_default();
        let ip = match url.host() {
            Some(Host::Ipv4(ip)) => IpAddr::V4(ip),
            Some(Host::Ipv6(ip)) => IpAddr::V6(ip),
            // The resolver does not know the port.
            Some(Host::Domain(name))
                if self.own_ports.contains(port)
                    && (!SHARED_PORTS.contains(&port) || is_loopback_name(name)) =>
            {
                return Err(AddressNotAllowed::Own);
            }
            Some(Host::Domain(name)) => {
                let is_listed = self.entries.iter().any(|entry| entry.matches_host(name, port));
                return Ok(if is_listed { AddressScope::Listed } else { AddressScope::Public });
            }
            None => return Err(AddressNotAllowed::Private),
        };
        let ip = ip.to_canonical();
        let is_here = ip.is_loopback() || ip.is_unspecified();
        let can_be_own = is_here || (!SHARED_PORTS.contains(&port) && !is_public(ip));
        if self.own_ports.contains(port) && can_be_own {
            return Err(AddressNotAllowed::Own);
        }
        let is_listed = self.entries.contains(&AllowedAddress::Address { ip, port });
        if is_listed || self.is_allowed(ip, AddressScope::Public) {
            Ok(AddressScope::Public)
        } else {
            Err(AddressNotAllowed::Private)
        }
    }

    /// True if a tool may connect to an address to which a host name resolved.
    pub(super) fn is_allowed(&self, ip: IpAddr, reach: AddressScope) -> bool {
        let ip = ip.to_canonical();
        let in_range =
            |entry: &AllowedAddress| matches!(entry, AllowedAddress::Net(net) if net.contains(&ip));
        is_public(ip)
            || (self.is_loopback_allowed && ip.is_loopback())
            || self.entries.iter().any(in_range)
            || (reach == AddressScope::Listed && is_allowed_for_listed_name(ip))
    }
}

impl AllowedAddress {
    fn parse(item: &str) -> Option<Self> {
        if let Ok(net) = item.parse::<IpNet>() {
            return Some(Self::Net(net.trunc()));
        }
        let bare = item.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(item);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Some(Self::Net(IpNet::from(ip.to_canonical())));
        }
        if let Ok(address) = item.parse::<SocketAddr>() {
            return Some(Self::Address { ip: address.ip().to_canonical(), port: address.port() });
        }
        let (name, port) = match item.split_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok()?)),
            None => (item, None),
        };
        // The URL parser reads `127.1` and `0x7f000001` as addresses, so these are not host names.
        let is_name = matches!(Host::parse(name).ok()?, Host::Domain(_));
        is_name.then(|| Self::Name { name: normalize_host(name), port })
    }

    fn matches_host(&self, name: &str, port: u16) -> bool {
        matches!(self, Self::Name { name: listed, port: at }
            if *listed == normalize_host(name) && at.is_none_or(|at| at == port))
    }
}

fn is_loopback_name(name: &str) -> bool {
    let name = normalize_host(name);
    name == "localhost" || name.ends_with(".localhost")
}

fn normalize_host(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// True if a listed host name may resolve to this address although it is not public. Link-local
/// addresses are excluded: they include the cloud metadata services, which a listed name such as
/// `intranet.example` does not need.
fn is_allowed_for_listed_name(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            ip.is_private() || ip.is_loopback() || is_in_v4_range(ip, [100, 64, 0, 0], 10)
        }
        IpAddr::V6(ip) => ip.is_loopback() || (ip.is_unique_local() && ip != METADATA_V6),
    }
}

/// The metadata service of another cloud, which has a unique local address.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254);

/// Azure's platform service on every virtual machine. Its address is in a public range.
const WIRE_SERVER: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// True if an address is not in IANA's special-purpose registries.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => {
            let in_net = |net: [u16; 2], bits: u8| {
                let [high, low, ..] = ip.segments();
                let mask = u32::MAX << (32 - u32::from(bits));
                (join_segments(high, low) ^ join_segments(net[0], net[1])) & mask == 0
            };
            // Translated and tunnelled addresses are public if the embedded address is.
            match ip.segments() {
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
                    return is_public_v4(Ipv4Addr::from_bits(join_segments(high, low)));
                }
                _ => {}
            }
            let special = [([0x2001, 0], 23), ([0x2001, 0x0db8], 32), ([0x3fff, 0], 20)];
            in_net([0x2000, 0], 3) && !special.iter().any(|(net, bits)| in_net(*net, *bits))
        }
    }
}

fn join_segments(high: u16, low: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    const SPECIAL: [([u8; 4], u8); 14] = [
        ([0, 0, 0, 0], 8),
        ([10, 0, 0, 0], 8),
        ([100, 64, 0, 0], 10),
        ([127, 0, 0, 0], 8),
        ([169, 254, 0, 0], 16),
        ([172, 16, 0, 0], 12),
        ([192, 0, 0, 0], 24),
        ([192, 0, 2, 0], 24),
        ([192, 88, 99, 0], 24),
        ([192, 168, 0, 0], 16),
        ([198, 18, 0, 0], 15),
        ([198, 51, 100, 0], 24),
        ([203, 0, 113, 0], 24),
        // Multicast, reserved and broadcast addresses.
        ([224, 0, 0, 0], 3),
    ];
    ip != WIRE_SERVER && !SPECIAL.iter().any(|(net, bits)| is_in_v4_range(ip, *net, *bits))
}

fn is_in_v4_range(ip: Ipv4Addr, net: [u8; 4], bits: u8) -> bool {
    let mask = u32::MAX << (32 - u32::from(bits));
    ip.to_bits() & mask == Ipv4Addr::from(net).to_bits() & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn own_ports_are_refused_whatever_the_list_allows() {
        let own_ports = OwnPorts::default();
        let rules = AddressRules::parse("127.0.0.0/8,localhost:7071,box.example").unwrap();
        let rules = rules.with_loopback().with_own_ports(own_ports.clone());
        own_ports.set(vec![7071, 40_123]);
        for host in
            ["127.0.0.1", "127.1", "[::1]", "localhost", "localhost.", "box.example", "0.0.0.0"]
        {
            for port in [7071, 40_123] {
                let checked = rules.check_url(&url(&format!("http://{host}:{port}/api")));
                assert_eq!(checked, Err(AddressNotAllowed::Own), "{host}:{port}");
            }
        }
        for allowed in ["http://127.0.0.1:7072/", "http://localhost/", "http://20.0.0.1:7071/"] {
            assert!(rules.check_url(&url(allowed)).is_ok(), "{allowed}");
        }
    }

    #[test]
    fn own_port_of_the_web_refuses_no_other_hosts() {
        let own_ports = OwnPorts::default();
        own_ports.set(vec![80, 443]);
        let rules = AddressRules::parse("10.1.0.0/16,localhost,box.example").unwrap();
        let rules = rules.with_loopback().with_own_ports(own_ports);
        for host in ["any.example", "box.example", "localhost.example", "10.1.2.3", "20.0.0.1"] {
            for scheme in ["http", "https"] {
                assert!(rules.check_url(&url(&format!("{scheme}://{host}/"))).is_ok(), "{host}");
            }
        }
        for host in ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "[::1]", "0.0.0.0"] {
            for scheme in ["http", "https"] {
                let checked = rules.check_url(&url(&format!("{scheme}://{host}/")));
                assert_eq!(checked, Err(AddressNotAllowed::Own), "{host}");
            }
        }
    }

    #[test]
    fn private_addresses_are_rejected_in_every_notation() {
        let rules = AddressRules::default();
        for host in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f.1",
            "017700000001",
            "0.0.0.0",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.0.1",
            "100.64.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "192.0.0.192",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[fd00:ec2::254]",
            "[fc00::1]",
            "[ff02::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:a9fe:a9fe]",
            "[64:ff9b::a9fe:a9fe]",
            "[2002:7f00:1::]",
            "[2001:db8::1]",
            "[2001::1]",
            "[::127.0.0.1]",
        ] {
            assert_eq!(
                rules.check_url(&url(&format!("http://{host}/"))),
                Err(AddressNotAllowed::Private),
                "{host}"
            );
        }
        for host in ["93.184.216.34", "[2606:2800:220:1::1]", "[64:ff9b::5db8:d822]", "20.0.0.1"] {
            assert_eq!(
                rules.check_url(&url(&format!("http://{host}/"))),
                Ok(AddressScope::Public),
                "{host}"
            );
        }
    }

    #[test]
    fn only_listed_private_addresses_are_allowed() {
        let rules = AddressRules::parse(
            "10.1.0.0/16, intranet.example:8080 127.0.0.1:9000,[fd12::1] host.local",
        )
        .unwrap();
        let reach = |text: &str| rules.check_url(&url(text));
        assert_eq!(reach("http://10.1.2.3/"), Ok(AddressScope::Public));
        assert_eq!(reach("http://10.2.2.3/"), Err(AddressNotAllowed::Private));
        assert_eq!(reach("http://[::ffff:10.1.2.3]/"), Ok(AddressScope::Public));
        assert_eq!(reach("http://127.0.0.1:9000/"), Ok(AddressScope::Public));
        assert_eq!(reach("http://127.0.0.1:9001/"), Err(AddressNotAllowed::Private));
        assert_eq!(reach("http://[fd12::1]/"), Ok(AddressScope::Public));
        assert_eq!(reach("http://INTRANET.example:8080/"), Ok(AddressScope::Listed));
        assert_eq!(reach("http://intranet.example/"), Ok(AddressScope::Public));
        assert_eq!(reach("https://host.local./"), Ok(AddressScope::Listed));
        let private: IpAddr = "192.168.7.7".parse().unwrap();
        assert!(rules.is_allowed(private, AddressScope::Listed));
        assert!(!rules.is_allowed(private, AddressScope::Public));
        let metadata: IpAddr = "169.254.169.254".parse().unwrap();
        assert!(
            !rules.is_allowed(metadata, AddressScope::Listed),
            "a listed name does not reach the metadata service"
        );
    }

    #[test]
    fn invalid_address_list_names_its_items() {
        let wrong = AddressRules::parse("10.0.0.0/8 http://x y:z").unwrap_err();
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("`http://x`"), "{wrong:?}");
    }

    #[test]
    fn loopback_is_allowed_only_in_dev() {
        let dev = AddressRules::default().with_loopback();
        assert_eq!(dev.check_url(&url("http://127.0.0.1:1/")), Ok(AddressScope::Public));
        assert_eq!(dev.check_url(&url("http://[::1]:1/")), Ok(AddressScope::Public));
        assert_eq!(dev.check_url(&url("http://10.0.0.1/")), Err(AddressNotAllowed::Private));
    }
}
