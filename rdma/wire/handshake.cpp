// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/wire/handshake.hpp"

#include "rdma/wire/immediate.hpp"

namespace rtrs::wire {
namespace {

/// Linux never returns an errno beyond this one (MAX_ERRNO).
constexpr int kMaxErrno = 4095;

template <class Record>
Result<Record> copy_record(ConstBytes bytes) {
  if (bytes.size() < sizeof(Record)) return tl::unexpected(DecodeError::too_short);
  auto record = copy_of<Record>(bytes);
  if (record.magic != kMagic) return tl::unexpected(DecodeError::bad_magic);
  if (record.version >> 8 != kMajorVersion) return tl::unexpected(DecodeError::bad_version);
  return record;
}

template <class Record>
void put_extension(Record& record, const Extension& extension) {
  if (!extension.present) return;
  record.extension_magic = kExtensionMagic;
  record.extension_version = kExtensionVersion;
  record.features = extension.features;
}

/// Bytes that a Linux peer left there must not be taken for features.
template <class Record>
Extension get_extension(const Record& record) {
  Extension extension;
  extension.present =
      record.extension_magic == kExtensionMagic && record.extension_version == kExtensionVersion;
  if (extension.present) extension.features = record.features;
  return extension;
}

/// The kind of path. The byte means nothing from a peer without the feature.
Result<PathKind> get_kind(const ConnectRequest& record, const Extension& extension) {
  if ((extension.features & kFeatureMemoryPaths) == 0) return PathKind::requests;
  if (record.kind > static_cast<std::uint8_t>(PathKind::memory)) {
    return tl::unexpected(DecodeError::bad_value);
  }
  return static_cast<PathKind>(record.kind);
}

bool sizes_can_work(const AcceptParameters& accept) {
  if (accept.max_io_size < kMinMaxIoSize || accept.max_header_size < kMinMaxHeaderSize)
    return false;
  const std::uint64_t chunk_size = std::uint64_t{accept.max_io_size} + accept.max_header_size;
  return chunk_size <= (1U << kImmediatePayloadBits) &&
         fits_immediate(accept.queue_depth, static_cast<std::uint32_t>(chunk_size));
}

}  // namespace

const char* to_string(PathAccess access) {
  switch (access) {
    case PathAccess::optimized:
      return "optimized";
    case PathAccess::non_optimized:
      return "non-optimized";
    case PathAccess::inaccessible:
      return "inaccessible";
  }
  return "unknown";
}

Result<PathAccess> decode_access(std::uint32_t value) {
  if (value > static_cast<std::uint32_t>(PathAccess::inaccessible))
    return tl::unexpected(DecodeError::bad_value);
  return static_cast<PathAccess>(value);
}

std::uint32_t access_immediate(PathAccess access) {
  return make_immediate(ImmediateType::access, static_cast<std::uint32_t>(access));
}

ConnectRequest encode(const ConnectParameters& parameters) {
  ConnectRequest record;
  record.cid = parameters.cid;
  record.cid_count = parameters.cid_count;
  record.reconnect_count = parameters.reconnect_count;
  record.path_uuid = parameters.path_uuid;
  record.session_uuid = parameters.session_uuid;
  record.first_connection = parameters.first_connection ? 1 : 0;
  record.kind = static_cast<std::uint8_t>(parameters.kind);
  put_extension(record, parameters.extension);
  return record;
}

ConnectResponse encode(const AcceptParameters& parameters) {
  ConnectResponse record;
  record.queue_depth = parameters.queue_depth;
  record.max_io_size = parameters.max_io_size;
  record.max_header_size = parameters.max_header_size;
  record.flags = parameters.new_rkey ? kFlagNewRkey : 0;
  put_extension(record, parameters.extension);
  if (parameters.extension.present) {
    record.session_epoch = parameters.extension.session_epoch;
    record.volatile_epoch = parameters.extension.volatile_epoch;
    record.access = static_cast<std::uint8_t>(parameters.extension.access);
    record.server_id = parameters.extension.server_id;
  }
  return record;
}

ConnectResponse encode_reject(int error) {
  ConnectResponse record;
  record.error = static_cast<std::uint16_t>(-error);
  return record;
}

Result<ConnectParameters> decode_connect_request(ConstBytes bytes) {
  const auto record = copy_record<ConnectRequest>(bytes);
  if (!record) return tl::unexpected(record.error());

  ConnectParameters parameters;
  parameters.cid = record->cid;
  parameters.cid_count = record->cid_count;
  if (parameters.cid_count > kMaxConnections || parameters.cid >= parameters.cid_count)
    return tl::unexpected(DecodeError::bad_count);
  parameters.reconnect_count = record->reconnect_count;
  parameters.path_uuid = record->path_uuid;
  parameters.session_uuid = record->session_uuid;
  parameters.first_connection = (record->first_connection & 1) != 0;
  parameters.extension = get_extension(*record);
  const auto kind = get_kind(*record, parameters.extension);
  if (!kind) return tl::unexpected(kind.error());
  parameters.kind = *kind;
  return parameters;
}

Result<ConnectAnswer> decode_connect_response(ConstBytes bytes) {
  const auto record = copy_record<ConnectResponse>(bytes);
  if (!record) return tl::unexpected(record.error());

  ConnectAnswer answer;
  if (record->error != 0) {
    answer.error = -static_cast<std::int16_t>(record->error.value());
    if (answer.error < 1 || answer.error > kMaxErrno) return tl::unexpected(DecodeError::bad_value);
    return answer;
  }
  answer.accept.queue_depth = record->queue_depth;
  answer.accept.max_io_size = record->max_io_size;
  answer.accept.max_header_size = record->max_header_size;
  answer.accept.new_rkey = (record->flags & kFlagNewRkey) != 0;
  answer.accept.extension = get_extension(*record);
  if (answer.accept.extension.present) {
    answer.accept.extension.session_epoch = record->session_epoch;
    answer.accept.extension.volatile_epoch = record->volatile_epoch;
    const auto access = decode_access(record->access);
    if (!access) return tl::unexpected(access.error());
    answer.accept.extension.access = *access;
    answer.accept.extension.server_id = record->server_id;
  }
  if (!sizes_can_work(answer.accept)) return tl::unexpected(DecodeError::bad_value);
  return answer;
}

}  // namespace rtrs::wire
