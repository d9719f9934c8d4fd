// Preloaded into an nbdkit that loads a sanitized plugin, next to the sanitizer's own library.
#include <clocale>

extern "C" {

/// Keeps plugins loaded until the end, so that reports about leaks have names in them.
int dlclose(void* /*handle*/) noexcept { return 0; }

/// With libasan preloaded, glibc's locale lock is damaged before main() (Debian 12: constructors of
/// libp11-kit, which comes with GnuTLS); after any strerror() the destructor of libp11-kit would
/// wait for that lock for ever.
void freelocale(locale_t /*locale*/) noexcept {}
}
