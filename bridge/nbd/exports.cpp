// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/exports.hpp"

#include <cerrno>

#include "bridge/client/uri.hpp"
#include "bridge/nbd/wire.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd::nbd {

tl::expected<std::vector<rnbd::wire::ExportName>, Failure> Exports::list(
    const Interrupt& interrupt) {
  if (config_.dynamic_export) return connections_.present(interrupt);
  return std::vector<rnbd::wire::ExportName>{{config_.device, ""}};
}

tl::expected<Lease, Failure> Exports::open(const std::string& name, const Interrupt& interrupt,
                                           Absent& absent) {
  // A client's own words are not for the log before they are known to be short and printable.
  if (std::string complaint = complaint_about_device_name(name);
      !name.empty() && !complaint.empty()) {
    return tl::unexpected(Failure{EINVAL, complaint});
  }
  if (!config_.dynamic_export && !name.empty() && name != config_.device) {
    return tl::unexpected(Failure{ENOENT, "there is no export " + in_quotes(name) +
                                              " here; the only one is " +
                                              in_quotes(config_.device)});
  }
  // Several of these may share the connections, each with settings of its own.
  DiskConfig wanted = config_;
  if (config_.dynamic_export) wanted.device = name;
  const auto device = wanted.device.empty()
                          ? connections_.open(name, /*readonly=*/false, interrupt, absent)
                          : connections_.open(wanted, /*readonly=*/false, interrupt, absent);
  if (!device) return tl::unexpected(device.error());
  return Lease{connections_, **device};
}

std::uint16_t Exports::flags(const Disk& device, Framing framing) const {
  const DeviceGeometry& geometry = device.geometry();
  unsigned flags = kHasFlags;
  if (geometry.can_flush) flags |= kSendFlush;
  if (geometry.rotational) flags |= kRotational;
  if (geometry.cache) flags |= kSendCache;
  if (device.read_only()) {
    flags |= kReadOnly;
  } else {
    flags |= kSendWriteZeroes;  // by writing zeroes, if there is nothing better
    if (geometry.can_fua) flags |= kSendFua;
    if (geometry.max_discard != 0) flags |= kSendTrim;
    if (geometry.fast_zero) flags |= kSendFastZero;
  }
  if (framing != Framing::simple) flags |= kSendDf;
  // In migration mode another host may write as well.
  const bool alone = config_.access != rnbd::wire::AccessMode::migration;
  if (alone && geometry.flush_covers_all) flags |= kCanMultiConn;
  return static_cast<std::uint16_t>(flags);
}

std::string Exports::description(const Disk& device) const { return connections_.describe(device); }

}  // namespace rnbd::nbd
