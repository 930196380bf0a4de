package routes

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Constants of linux/ip.h and linux/if_link.h that our libraries lack.
const (
	iflaInetConf        = 1  // IFLA_INET_CONF
	srcValidMark uint16 = 24 // IPV4_DEVCONF_SRC_VMARK
)

// ConsiderMarks makes the reverse path filter of links, by index, look up routes by the mark
// of a packet, where it is strict (rp_filter of 1): otherwise it drops the encrypted packets
// of nodes inside pod subnets, which [Filter] marks. IPv6 has no such filter. changed reports
// whether a setting was written.
func ConsiderMarks(log *slog.Logger, links []int) (changed bool, err error) {
	var errs []error
	for _, index := range links {
		l, err := netlink.LinkByIndex(index)
		if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
			continue // just removed
		}
		if err == nil {
			var set bool
			set, err = considerMarks(log, l.Attrs().Name, index)
			changed = changed || set
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reverse path filter of the link with index %d: %w", index, err))
		}
	}
	return changed, errors.Join(errs...)
}

func considerMarks(log *slog.Logger, name string, index int) (changed bool, err error) {
	// The greater value of "all" and the link counts (networking/ip-sysctl).
	filter, err := greater(name, "rp_filter")
	if err != nil || filter != "1" {
		return false, err
	}
	if considered, err := greater(name, "src_valid_mark"); err != nil || considered != "0" {
		return false, err
	}
	// By netlink: /proc/sys is read-only in a container.
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(index)
	request.AddData(message)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(iflaInetConf, nil).AddRtAttr(int(srcValidMark), nl.Uint32Attr(1))
	request.AddData(spec)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return false, fmt.Errorf("set src_valid_mark: %w", err)
	}
	log.Info("strict reverse path filter considers firewall marks now", "device", name, "src_valid_mark", 1)
	return true, nil
}

// greater returns the greater value of a setting of IPv4, that of a link or of "all".
func greater(link, setting string) (value string, err error) {
	for _, name := range []string{"all", link} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/" + setting)
		if err != nil {
			return "", err
		}
		value = max(value, strings.TrimSpace(string(text)))
	}
	return value, nil
}
