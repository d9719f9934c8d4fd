// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/handshake.hpp"

#include <cerrno>
#include <string>
#include <utility>

#include "bridge/client/geometry.hpp"
#include "bridge/nbd/handshake_socket.hpp"
#include "bridge/nbd/wire.hpp"

namespace rnbd::nbd {
namespace {

/// Bytes of an option's data. The longest that make sense is a list of queries.
constexpr std::uint32_t kMaxOption = 64 * 1024;
/// More is not even skipped.
constexpr std::uint32_t kMaxSkipped = 32 * 1024 * 1024;

enum class Next { haggle, transmit, leave };

class Handshake {
 public:
  Handshake(int socket, Exports& exports, const rtrs::Log& log, const Interrupt& interrupt,
            std::chrono::milliseconds patience, const FrontTls& tls,
            const std::function<void()>& chosen)
      : socket_{socket, interrupt, patience},
        exports_{exports},
        log_{log},
        interrupt_{interrupt},
        tls_{tls},
        chosen_{chosen} {}

  std::optional<Agreement> run();

 private:
  bool greet();
  Next answer_option();
  Next dispatch(std::uint32_t option, const std::string& data);
  Next export_name(const std::string& name);
  Next list(std::uint32_t option, const std::string& data);
  Next info(std::uint32_t option, const std::string& data);
  bool send_info(std::uint32_t option, const std::string& data, const Disk& device);
  Next start_tls(std::uint32_t option, const std::string& data);
  Next demand_tls(std::uint32_t option);
  Next structured_reply(std::uint32_t option, const std::string& data);
  Next extended_headers(std::uint32_t option, const std::string& data);
  Next meta_context(std::uint32_t option, const std::string& data);
  bool open(const std::string& name);
  bool look_again();
  std::uint16_t tell_flags(std::uint32_t option, const Disk& device);
  Next refuse_export(std::uint32_t option);
  Next reply(std::uint32_t option, Reply type, std::string_view text = {}) {
    return socket_.reply(option, type, clipped(text)) ? Next::haggle : Next::leave;
  }
  void complain(const std::string& text) const {
    if (log_) log_(rtrs::LogLevel::warning, "NBD client: " + text);
  }

  HandshakeSocket socket_;
  Exports& exports_;
  const rtrs::Log& log_;
  const Interrupt& interrupt_;
  const FrontTls& tls_;
  const std::function<void()>& chosen_;
  bool fixed_ = false;  ///< the client understands replies to options
  bool no_zeroes_ = false;
  bool tried_ = false;  ///< to open an export
  /// A client that has asked for the list looks at one export after the other, and one that has
  /// waited has been told why. Neither waits for storage that is absent.
  Absent absent_ = Absent::awaited;
  Agreement agreement_;
  std::string name_;          ///< under which agreement_.device was opened
  Failure failure_;           ///< why open() failed
  std::string context_name_;  ///< the export for which contexts were chosen
};

std::optional<Agreement> Handshake::run() {
  if (!greet()) return std::nullopt;
  for (;;) {
    switch (answer_option()) {
      case Next::haggle:
        continue;
      case Next::leave:
        return std::nullopt;
      case Next::transmit:
        if (context_name_ != name_) agreement_.block_status = false;
        return std::move(agreement_);
    }
  }
}

bool Handshake::greet() {
  Greeting greeting;
  greeting.magic = kMagic;
  greeting.version = kOptionMagic;
  greeting.flags = kFixedNewstyle | kNoZeroes;
  big_uint32_t flags;
  if (!socket_.send(&greeting, sizeof(greeting)) || !socket_.receive(&flags, sizeof(flags))) {
    return false;
  }
  no_zeroes_ = (flags & kNoZeroes) != 0;
  fixed_ = (flags & kFixedNewstyle) != 0;
  if ((flags & ~std::uint32_t{kFixedNewstyle | kNoZeroes}) != 0) {
    complain("it set client flags that we have not offered (" + std::to_string(flags) + ")");
    return false;
  }
  return true;
}

Next Handshake::answer_option() {
  OptionHeader header;
  if (!socket_.receive(&header, sizeof(header))) return Next::leave;
  if (header.magic != kOptionMagic) {
    complain("it sent garbage where an option should be");
    return Next::leave;
  }
  const bool has_reply = header.option != static_cast<std::uint32_t>(Option::export_name);
  if (has_reply && !fixed_) {
    complain("it sent option " + std::to_string(header.option) +
             ", but not the flag for fixed newstyle negotiation; without that it can only name an "
             "export");
    return Next::leave;
  }
  if (header.length > kMaxOption) {
    if (!has_reply || header.length > kMaxSkipped || !socket_.skip(header.length)) {
      complain("it sent an option of " + std::to_string(header.length) + " bytes");
      return Next::leave;
    }
    return reply(header.option, Reply::too_big, "the option is too long");
  }
  std::string data(header.length, '\0');
  if (!socket_.receive(data.data(), data.size())) return Next::leave;
  return dispatch(header.option, data);
}

Next Handshake::dispatch(std::uint32_t option, const std::string& data) {
  if (tls_.mode == rtrs::TlsMode::require && !agreement_.tls &&
      option != static_cast<std::uint32_t>(Option::starttls) &&
      option != static_cast<std::uint32_t>(Option::abort)) {
    return demand_tls(option);
  }
  switch (static_cast<Option>(option)) {
    case Option::export_name:
      return export_name(data);
    case Option::abort:
      (void)socket_.reply(option, Reply::ack);
      return Next::leave;
    case Option::list:
      return list(option, data);
    case Option::info:
    case Option::go:
      return info(option, data);
    case Option::structured_reply:
      return structured_reply(option, data);
    case Option::extended_headers:
      return extended_headers(option, data);
    case Option::list_meta_context:
    case Option::set_meta_context:
      return meta_context(option, data);
    case Option::starttls:
      return start_tls(option, data);
  }
  return reply(option, Reply::unsupported);
}

/// Opens the export once, even if the client asks several times. The size is read each time.
bool Handshake::open(const std::string& name) {
  if (agreement_.device && name_ == name) return look_again();
  agreement_.device = {};
  const auto began = std::chrono::steady_clock::now();
  auto opened = exports_.open(name, interrupt_, absent_);
  // The time for opening is excluded once only, so that a client cannot go on with more and more
  // exports.
  if (!std::exchange(tried_, true)) socket_.prolong(std::chrono::steady_clock::now() - began);
  if (!opened) {
    failure_ = opened.error();
    complain(failure_.text);
    return false;
  }
  agreement_.device = std::move(*opened);
  name_ = name;
  return true;
}

bool Handshake::look_again() {
  auto looked = agreement_.device->look_again(interrupt_);
  if (looked) return true;
  failure_ = looked.error();
  complain(failure_.text);
  return false;
}

Next Handshake::refuse_export(std::uint32_t option) {
  const bool ends = failure_.error == EINTR;
  return reply(option, refusal(failure_.error), ends ? "the bridge ends" : failure_.text);
}

/// A client that only asks may still choose contexts.
std::uint16_t Handshake::tell_flags(std::uint32_t option, const Disk& device) {
  unsigned flags = exports_.flags(device, agreement_.framing);
  const bool has_contexts = option == static_cast<std::uint32_t>(Option::info)
                                ? device.geometry().extents
                                : agreement_.block_status && context_name_ == name_;
  if (agreement_.framing == Framing::extended && has_contexts) flags |= kBlockStatusPayload;
  return agreement_.flags = static_cast<std::uint16_t>(flags);
}

Next Handshake::export_name(const std::string& name) {
  if (agreement_.framing == Framing::extended) {
    complain("it chose an export by EXPORT_NAME after EXTENDED_HEADERS, which excludes that");
    return Next::leave;
  }
  if (name.size() > kMaxNameLength || !open(name)) return Next::leave;  // there is no other answer
  const Disk& device = *agreement_.device;
  const big_uint64_t size{device.geometry().size};
  const big_uint16_t flags{tell_flags(static_cast<std::uint32_t>(Option::export_name), device)};
  std::string answer = bytes_of(size) + bytes_of(flags);
  if (!no_zeroes_) answer.append(124, '\0');
  if (chosen_) chosen_();
  return socket_.send(answer) ? Next::transmit : Next::leave;
}

Next Handshake::list(std::uint32_t option, const std::string& data) {
  if (!data.empty()) return reply(option, Reply::invalid, "LIST has no data");
  absent_ = Absent::refused;
  auto exports = exports_.list(interrupt_);
  if (!exports) {
    complain(exports.error().text);
    return reply(option, refusal(exports.error().error), exports.error().text);
  }
  for (const auto& [name, about] : *exports) {
    const big_uint32_t length{static_cast<std::uint32_t>(name.size())};
    const std::string answer = bytes_of(length) + name + std::string{clipped(about)};
    if (!socket_.reply(option, Reply::server, answer)) return Next::leave;
  }
  return reply(option, Reply::ack);
}

Next Handshake::info(std::uint32_t option, const std::string& data) {
  OptionReader reader{data};
  const std::string name = reader.take_string();
  const std::uint16_t count = reader.take<big_uint16_t>();
  if (!reader.good() || reader.left() != count * sizeof(big_uint16_t)) {
    return reply(option, Reply::invalid, "the option's lengths contradict each other");
  }
  if (!open(name)) return refuse_export(option);
  const std::string wanted = data.substr(data.size() - reader.left());
  const bool go = option == static_cast<std::uint32_t>(Option::go);
  if (go && chosen_) chosen_();
  if (!send_info(option, wanted, *agreement_.device)) return Next::leave;
  if (!socket_.reply(option, Reply::ack)) return Next::leave;
  return go ? Next::transmit : Next::haggle;
}

bool Handshake::send_info(std::uint32_t option, const std::string& wanted, const Disk& device) {
  const auto send = [&](Info type, const std::string& data) {
    const big_uint16_t number{static_cast<std::uint16_t>(type)};
    return socket_.reply(option, Reply::info, bytes_of(number) + data);
  };
  const big_uint64_t size{device.geometry().size};
  const big_uint16_t flags{tell_flags(option, device)};
  if (!send(Info::export_, bytes_of(size) + bytes_of(flags))) return false;
  OptionReader reader{wanted};
  while (reader.left() > 0) {
    bool sent = true;
    switch (static_cast<Info>(std::uint16_t{reader.take<big_uint16_t>()})) {
      case Info::name:
        sent = send(Info::name, device.name());
        break;
      case Info::description:
        sent = send(Info::description, std::string{clipped(exports_.description(device))});
        break;
      case Info::block_size: {
        const BlockSizes sizes = block_sizes(device.geometry());
        sent = send(Info::block_size, bytes_of(big_uint32_t{sizes.minimum}) +
                                          bytes_of(big_uint32_t{sizes.preferred}) +
                                          bytes_of(big_uint32_t{sizes.maximum}));
        break;
      }
      case Info::export_:
        break;
    }
    if (!sent) return false;
  }
  return true;
}

Next Handshake::demand_tls(std::uint32_t option) {
  complain("it comes without TLS, which is required (--tls)");
  // To an export's bare name there is no answer.
  if (option == static_cast<std::uint32_t>(Option::export_name)) return Next::leave;
  return reply(option, Reply::tls_required, "this server requires TLS: use nbds:// or STARTTLS");
}

/// Everything before TLS is forgotten, because anyone on the way may have sent it.
Next Handshake::start_tls(std::uint32_t option, const std::string& data) {
  if (tls_.mode == rtrs::TlsMode::off) {
    return reply(option, Reply::policy, "TLS is not enabled here (--tls)");
  }
  if (agreement_.tls) return reply(option, Reply::invalid, "TLS has begun already");
  if (!data.empty()) return reply(option, Reply::invalid, "STARTTLS has no data");
  if (socket_.has_arrivals()) {
    complain("it sent something in clear behind STARTTLS");
    return Next::leave;
  }
  auto session = rtrs::tls::Session::create(
      {.credentials = tls_.keys->current(), .server_name = "", .protocol = ""});
  if (!session) {
    complain(session.error().text);
    return reply(option, Reply::policy, "TLS cannot be used now");
  }
  if (reply(option, Reply::ack) == Next::leave) return Next::leave;
  if (!socket_.secure(**session)) {
    const std::string& why = (*session)->failure().text;
    complain("refused: " + (why.empty() ? std::string{"it left during the TLS handshake"} : why));
    return Next::leave;
  }
  const rtrs::Identity& who = (*session)->identity();
  if (log_) {
    log_(rtrs::LogLevel::info,
         "NBD client: auth ok identity=" + (who.name.empty() ? "-" : who.name) +
             " how=" + to_string(who.how) + " cipher=" + who.cipher);
  }
  agreement_ = {};
  name_.clear();
  context_name_.clear();
  agreement_.tls = *std::move(session);
  return Next::haggle;
}

Next Handshake::structured_reply(std::uint32_t option, const std::string& data) {
  if (!data.empty()) return reply(option, Reply::invalid, "STRUCTURED_REPLY has no data");
  if (agreement_.framing == Framing::extended) {
    return reply(option, Reply::extended_headers_required, "extended headers are agreed on");
  }
  agreement_.framing = Framing::structured;
  return reply(option, Reply::ack);
}

/// Contexts that were chosen stay.
Next Handshake::extended_headers(std::uint32_t option, const std::string& data) {
  if (!data.empty()) return reply(option, Reply::invalid, "EXTENDED_HEADERS has no data");
  agreement_.framing = Framing::extended;
  return reply(option, Reply::ack);
}

Next Handshake::meta_context(std::uint32_t option, const std::string& data) {
  const bool set = option == static_cast<std::uint32_t>(Option::set_meta_context);
  if (set) agreement_.block_status = false;
  if (agreement_.framing == Framing::simple) {
    return reply(option, Reply::invalid, "negotiate structured replies first");
  }
  OptionReader reader{data};
  const std::string name = reader.take_string();
  const std::uint32_t count = reader.take<big_uint32_t>();
  bool chosen = !set && count == 0;
  for (std::uint32_t i = 0; i < count && reader.good(); ++i) {
    const std::string query = reader.take_string();
    chosen = chosen || query == kBaseAllocation || (!set && query == "base:");
  }
  if (!reader.complete()) {
    return reply(option, Reply::invalid, "the option's lengths contradict each other");
  }
  if (!open(name)) return refuse_export(option);
  if (chosen && agreement_.device->geometry().extents) {
    const big_uint32_t id{set ? kBaseAllocationId : 0};  // reserved in a list
    if (!socket_.reply(option, Reply::meta_context, bytes_of(id) + kBaseAllocation)) {
      return Next::leave;
    }
    if (set) {
      agreement_.block_status = true;
      context_name_ = name;
    }
  }
  return reply(option, Reply::ack);
}

}  // namespace

Reply refusal(int error) {
  switch (error) {
    case ENOENT:
    case ENXIO:
    case ENODEV:
    case ENOTDIR:
    case ENOTBLK:
    case EINVAL:
    case ENAMETOOLONG:
    case EAGAIN:  // its storage is not there
      return Reply::unknown;
    case EPERM:
    case EACCES:
    case EROFS:
    case EBUSY:
    case ENOMEM:  // a server that is full; it is not about to end
    case EOPNOTSUPP:
      return Reply::policy;
    default:
      return Reply::shutdown;
  }
}

std::optional<Agreement> shake_hands(int socket, Exports& exports, const rtrs::Log& log,
                                     const Interrupt& interrupt, std::chrono::milliseconds patience,
                                     const FrontTls& tls, const std::function<void()>& chosen) {
  return Handshake{socket, exports, log, interrupt, patience, tls, chosen}.run();
}

}  // namespace rnbd::nbd
