#pragma once
// Device memory of the SIMT machine: one reservation of address space, so that an address says whose it is.
#include <cstddef>
#include <cstdint>
#include <string>

namespace simt {

// End-aligned before a guard page; 64-byte aligned; 0xff. Null when `bytes` do not fit the device (SetDeviceBytes).
void* DeviceAllocate(size_t bytes);
bool DeviceFree(void* p);                    // false: no such allocation
bool IsDevice(const void* p);                // an address of the device's range
std::string DescribeAddress(const void* p);  // "8 bytes beyond the end of an allocation of 400 bytes"
// Reports allocations whose rounding was written over. Empty when there is none.
std::string CheckCanaries();

// Lets kernels and copies in, or keeps everybody out again (Options::protect).
void OpenDevice();
void CloseDevice();

// Virtual memory: reserved ranges, and pages of kVirtualPage in them that are backed or not.
inline constexpr size_t kVirtualPage = 64 << 10;
void* VirtualReserve(size_t bytes);
bool VirtualRelease(void* p, size_t bytes);
bool VirtualMap(void* p, size_t bytes);      // backs and fills with 0xff
bool VirtualUnmap(void* p, size_t bytes);

void SetDeviceBytes(size_t bytes);           // what the device has; default 4 GiB
size_t DeviceBytes();
size_t DeviceBytesUsed();

}  // namespace simt
